#!/usr/bin/python3
"""Ansible module: which versions of a plane a host has, which one runs, and which one ran before it."""

from __future__ import annotations

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_venvs
short_description: Look at the versions of a plane
description:
  - Says what C(current) and C(previous) point at, and which finished versions are there, the newest first.
  - Where no C(previous) is recorded and exactly one other version is there, that one is meant.
author: kinemill
options:
  root:
    description: Folder that holds the versions.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Look
  kinemill_venvs:
    root: /opt/kinemill/agents
"""

MARKER = ".kinemill-venv.json"


def target(root: Path, name: str, versions: list[str]) -> str:
    """The version that a link names, or nothing where it leads to none."""
    try:
        found = str((root / name).readlink())
    except OSError:
        return ""
    return found if found in versions else ""


def look(root: Path) -> dict[str, object]:
    """Versions, current, previous."""
    made = {
        path.name: (path / MARKER).stat().st_mtime_ns
        for path in (root.iterdir() if root.is_dir() else [])
        if not path.is_symlink() and (path / MARKER).is_file()
    }
    versions = sorted(made, key=lambda name: made[name], reverse=True)
    current = target(root, "current", versions)
    previous = target(root, "previous", versions)
    others = [name for name in versions if name != current]
    if previous in ("", current):
        previous = others[0] if len(others) == 1 else ""
    return {"versions": versions, "current": current, "previous": previous}


def main() -> None:
    """Entry."""
    module = AnsibleModule(argument_spec={"root": {"type": "path", "required": True}}, supports_check_mode=True)
    module.exit_json(changed=False, **look(Path(module.params["root"])))


if __name__ == "__main__":
    main()
