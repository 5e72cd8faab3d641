#!/usr/bin/python3
"""Ansible module: look at a node once; what is installed, who it thinks it is, how much room it has."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import socket
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_node_look
short_description: Look at a node
description:
  - Says what the node has, without changing anything and without a judgement.
  - What was there at the first contact is read from C(record) where that exists, for a later run finds what an
    earlier one installed.
author: kinemill
options:
  record:
    description: File that keeps what the first contact found.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Look
  kinemill_node_look:
    record: /var/lib/kinemill/first-contact.json
"""

# What proves that a vendor's part is there: any of these programs or files.
SIGNS = {
    "driver": ("nvidia-smi", "/usr/lib/*/libnvidia-ml.so.1", "/usr/local/lib/libnvidia-ml.so.1"),
    "fabric": ("nv-fabricmanager", "ibstat"),
    "slurm": ("slurmd", "slurmctld"),
    "munge": ("munged",),
    "containers": ("enroot", "podman"),
}
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def present(signs: tuple[str, ...]) -> bool:
    """Whether any sign is there."""
    return any(
        any(Path("/").glob(sign.lstrip("/"))) if sign.startswith("/") else shutil.which(sign, path=PATH)
        for sign in signs
    )


def os_release() -> dict[str, str]:
    """ID, VERSION_ID and the like."""
    try:
        lines = Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {key: value.strip('"') for key, _, value in (line.partition("=") for line in lines)}


def first_found(record: str) -> list[str] | None:
    """What the first contact found, or None where this is the first."""
    try:
        return [str(name) for name in json.loads(Path(record).read_text(encoding="utf-8"))["found"]]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def look(record: str) -> dict[str, Any]:
    """Everything."""
    found = sorted(name for name, signs in SIGNS.items() if present(signs))
    release = os_release()
    first = first_found(record)
    room = os.statvfs("/")
    return {
        "found": found,
        "found_first": found if first is None else first,
        "hostname": socket.gethostname().split(".")[0],
        "os_id": release.get("ID", "unknown"),
        "os_like": release.get("ID_LIKE", "").split(),
        "os_version": release.get("VERSION_ID", ""),
        "free_mb": room.f_bavail * room.f_frsize // 2**20,
        "package_lists": any(Path("/var/lib/apt/lists").glob("*_Packages*")),
        "users": {one.pw_name: one.pw_uid for one in pwd.getpwall()},
    }


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={"record": {"type": "path", "required": True}},
        supports_check_mode=True,
    )
    module.exit_json(changed=False, look=look(module.params["record"]))


if __name__ == "__main__":
    main()
