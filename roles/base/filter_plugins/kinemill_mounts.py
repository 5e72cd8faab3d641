"""Filter `kinemill_mounts`: a systemd mount unit for each disk of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible.errors import AnsibleFilterError

# Jobs and the agents' first look need the disk; a disk that is broken must not stop the boot.
TEXT = """# Written by Ansible (role base).
[Unit]
Description=Disk of this node at {mount}
Before=slurmd.service kinemill-node-boot.service

[Mount]
What={device}
Where={mount}
Type={filesystem}
Options={options}

[Install]
WantedBy=multi-user.target
"""


def unit_name(mount: str) -> str:
    """The name that systemd asks of the unit of a mount point."""
    escaped = []
    for index, char in enumerate(mount.strip("/")):
        if char == "/":
            escaped.append("-")
        elif (char.isascii() and char.isalnum()) or char in ":_" or (char == "." and index):
            escaped.append(char)
        else:
            escaped += [f"\\x{byte:02x}" for byte in char.encode()]
    return "".join(escaped) + ".mount"


def mounts(disks: Sequence[Mapping[str, str]]) -> dict[str, list[Any]]:
    """Files, as module `kinemill_files` takes them, and the names of the units; systemd makes the mount points."""
    files: list[dict[str, str]] = []
    units: list[str] = []
    for disk in disks:
        for name in ("device", "mount"):
            if not disk[name].startswith("/") or any(char.isspace() or char in "%\\" for char in disk[name]):
                raise AnsibleFilterError(f"base_disks: {name} {disk[name]!r} is not a plain absolute path")
        unit = unit_name(disk["mount"])
        text = TEXT.format(
            device=disk["device"],
            mount=disk["mount"].rstrip("/"),
            filesystem=disk.get("filesystem") or "xfs",
            options=disk.get("options") or "noatime",
        )
        files.append({"path": f"/etc/systemd/system/{unit}", "content": text})
        units.append(unit)
    return {"files": files, "units": units}


class FilterModule:
    """What Ansible looks for."""

    def filters(self) -> dict[str, Callable[..., dict[str, list[Any]]]]:
        """Filters by name."""
        return {"kinemill_mounts": mounts}
