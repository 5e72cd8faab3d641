#!/usr/bin/python3
"""Ansible module: make a venv from a wheelhouse, once, without an index and without ensurepip."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_venv
short_description: Make a venv from a wheelhouse
description:
  - Makes the venv and installs the wheelhouse's requirement into it, with pip run from its own wheel.
  - A finished venv is never changed. One that a killed run left half made is removed and made again.
author: kinemill
options:
  path:
    description: The venv.
    type: path
    required: true
  wheelhouse:
    description: Folder with the wheels and their C(artifact.json). Not read when the venv is finished.
    type: path
    required: true
  interpreter:
    description: Python that the venv is made from.
    type: path
    required: true
  find_links:
    description: Folders with further wheels, as the node sees them.
    type: list
    elements: path
    default: []
  index_url:
    description: An index for what is in none of the folders; none when empty. Credentials in it are refused.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Make the venv
  kinemill_venv:
    path: /opt/kinemill/agents/0.1.0+3fa9c1d2e4b7
    wheelhouse: /var/lib/kinemill/wheelhouses/agents/0.1.0+3fa9c1d2e4b7
    interpreter: /usr/bin/python3
"""

MARKER = ".kinemill-venv.json"


def installed(path: Path) -> dict[str, Any] | None:
    """What a finished venv says about itself; None where it is absent or unfinished."""
    try:
        marker = json.loads((path / MARKER).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return marker if isinstance(marker, dict) else None


def read_manifest(wheelhouse: Path) -> dict[str, Any]:
    """The wheelhouse's manifest.

    Raises:
        ValueError: It is absent, unreadable, or names wheels that are not there.
    """
    try:
        manifest = json.loads((wheelhouse / "artifact.json").read_text(encoding="utf-8"))
        names = [manifest["version"], manifest["requirement"], *manifest["wheels"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{wheelhouse}: not a wheelhouse ({error}); run playbooks/artifacts.yml first") from error
    lost = [name for name in names[2:] if not (wheelhouse / name).is_file()]
    if lost:
        raise ValueError(f"{wheelhouse}: lacks {', '.join(lost)}; remove the folder and run playbooks/artifacts.yml")
    return dict(manifest)


def pip_wheel(manifest: dict[str, Any]) -> str:
    """The file name of pip's own wheel, the newest if there are several.

    Raises:
        ValueError: There is none.
    """
    wheels = sorted(name for name in manifest["wheels"] if name.startswith("pip-"))
    if not wheels:
        raise ValueError("the wheelhouse has no wheel of pip; run playbooks/artifacts.yml again")
    return str(wheels[-1])


def sources(wheelhouse: Path, find_links: Sequence[str], index_url: str) -> list[str]:
    """Options of pip that say where wheels come from.

    Raises:
        ValueError: A folder is not there, or the address carries credentials, which every user of the node could read.
    """
    lost = [folder for folder in find_links if not Path(folder).is_dir()]
    if lost:
        raise ValueError(f"no such folder of wheels on the node: {', '.join(lost)}")
    if "@" in index_url:
        raise ValueError(
            "the index's address carries credentials; put them into root's netrc or serve the wheels inside"
        )
    options = [f"--index-url={index_url}"] if index_url else ["--no-index"]
    return options + [f"--find-links={folder}" for folder in (wheelhouse, *find_links)]


def make(module: AnsibleModule, path: Path, wheelhouse: Path, interpreter: str) -> dict[str, Any]:
    """Make the venv and mark it finished; the mark is the last thing written."""
    manifest = read_manifest(wheelhouse)
    wheel = wheelhouse / pip_wheel(manifest)
    origins = sources(wheelhouse, module.params["find_links"], module.params["index_url"])
    if path.exists():
        shutil.rmtree(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    # The caller's environment may carry index settings or a switch against bytecode; neither belongs here.
    environment = {"PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    module.run_command([interpreter, "-m", "venv", "--without-pip", str(path)], check_rc=True)
    install = [str(path / "bin" / "python"), f"{wheel}/pip", "install", "--quiet", "--no-cache-dir", *origins]
    install += ["--root-user-action=ignore", str(manifest["requirement"]), *manifest.get("also", [])]
    module.run_command(install, check_rc=True, environ_update=environment)
    marker = {"version": manifest["version"], "requirement": manifest["requirement"]}
    temporary = path / f"{MARKER}.tmp"
    with temporary.open("w", encoding="utf-8") as handle:
        json.dump(marker, handle)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path / MARKER)
    return marker


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "wheelhouse": {"type": "path", "required": True},
            "interpreter": {"type": "path", "required": True},
            "find_links": {"type": "list", "elements": "path", "default": []},
            "index_url": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    marker = installed(path)
    if marker is not None:
        module.exit_json(changed=False, **marker)
    if module.check_mode:
        module.exit_json(changed=True)
    try:
        marker = make(module, path, Path(module.params["wheelhouse"]), module.params["interpreter"])
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, **marker)


if __name__ == "__main__":
    main()
