#!/usr/bin/python3
"""Ansible module: look at a node once; what is installed, who it thinks it is, how much room it has."""

from __future__ import annotations

import grp
import json
import os
import pwd
import re
import shutil
import socket
import subprocess
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
    # A key that came with an image is known to everybody who has the image.
    "munge": ("munged", "/etc/munge/munge.key"),
    "containers": ("enroot", "podman"),
}
DAEMONS = ("slurmctld", "slurmd")
PROGRAMS = ("nft",)
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


def running(names: tuple[str, ...]) -> dict[str, list[str]]:
    """Daemon -> programs that run under its name, wherever they lie."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name = (folder / "comm").read_text(encoding="utf-8").strip()
            if name in found:
                found[name].add(str((folder / "exe").readlink()).removesuffix(" (deleted)"))
        except OSError:  # it ended meanwhile, or is a thread of the kernel
            continue
    return {name: sorted(paths) for name, paths in found.items()}


def daemon(name: str, runs: list[str]) -> dict[str, Any]:
    """Where a daemon lies, its version, and what runs of it."""
    path = (runs[0] if runs else None) or shutil.which(name, path=PATH)
    version = None
    if path:
        try:
            done = subprocess.run([path, "-V"], capture_output=True, text=True, timeout=10, check=False)
            match = re.search(r"\d+\.\d+(\.\d+)?", done.stdout)
            version = match[0] if match else None
        except (OSError, subprocess.TimeoutExpired):
            version = None
    return {"path": path, "version": version, "runs": runs}


def look(record: str) -> dict[str, Any]:
    """Everything."""
    runs = running(DAEMONS)
    found = sorted(name for name, signs in SIGNS.items() if present(signs))
    if any(runs.values()) and "slurm" not in found:  # from a folder of its own
        found = sorted([*found, "slurm"])
    release = os_release()
    first = first_found(record)
    room = os.statvfs("/")
    return {
        "found": found,
        "found_first": found if first is None else first,
        "first_contact": first is None,
        "slurm": {name: daemon(name, runs[name]) for name in DAEMONS},
        "hostname": socket.gethostname().split(".")[0],
        "os_id": release.get("ID", "unknown"),
        "os_like": release.get("ID_LIKE", "").split(),
        "os_version": release.get("VERSION_ID", ""),
        "free_mb": room.f_bavail * room.f_frsize // 2**20,
        "package_lists": any(Path("/var/lib/apt/lists").glob("*_Packages*")),
        "programs": [name for name in PROGRAMS if shutil.which(name, path=PATH)],
        "users": {one.pw_name: one.pw_uid for one in pwd.getpwall()},
        "groups": {one.gr_name: one.gr_gid for one in grp.getgrall()},
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
