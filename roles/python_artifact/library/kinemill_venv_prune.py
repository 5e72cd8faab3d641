#!/usr/bin/python3
"""Ansible module: remove old versions beside a current link, keeping the newest ones and the running one."""

from __future__ import annotations

import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_venv_prune
short_description: Remove old venvs beside a current link
description:
  - Keeps the C(keep) most recently made finished venvs and always those that C(current) and C(previous) point at.
  - Folders that are no venv of ours are left alone.
author: kinemill
options:
  root:
    description: Folder that holds the versions.
    type: path
    required: true
  keep:
    description: How many versions stay, the running one included.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Keep three versions
  kinemill_venv_prune:
    root: /opt/kinemill/agents
    keep: 3
"""

MARKER = ".kinemill-venv.json"


def removable(root: Path, keep: int) -> list[Path]:
    """The venvs to remove, oldest first."""
    needed = {(root / name).resolve() for name in ("current", "previous")}
    made = {
        path: (path / MARKER).stat().st_mtime_ns
        for path in root.iterdir()
        if not path.is_symlink() and path.is_dir() and (path / MARKER).is_file()
    }
    others = sorted((path for path in made if path.resolve() not in needed), key=lambda path: made[path])
    spare = len(made) - max(keep, 1)
    return others[: max(spare, 0)]


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={"root": {"type": "path", "required": True}, "keep": {"type": "int", "required": True}},
        supports_check_mode=True,
    )
    root = Path(module.params["root"])
    if module.params["keep"] < 1:
        module.fail_json(msg="keep must be at least 1: the running version stays")
    doomed = removable(root, module.params["keep"]) if root.is_dir() else []
    if not module.check_mode:
        for path in doomed:
            shutil.rmtree(path)
    module.exit_json(changed=bool(doomed), removed=[path.name for path in doomed])


if __name__ == "__main__":
    main()
