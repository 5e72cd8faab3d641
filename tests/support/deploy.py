"""Single roles on nodes of a sandbox, and stand-ins for what a node's machine would have."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from support.ansible import playbook, recap
from support.cluster import wait_for

if TYPE_CHECKING:
    from kinemill.control.sandbox.box import Sandbox

__all__ = ["Roles", "disk"]


class Roles:
    """Roles of this repository on the nodes of a sandbox.

    Args:
        box: The sandbox.
        folder: Where the inventory and the play are written.
        groups: Group -> nodes.
        variables: Variables of all hosts.
    """

    def __init__(
        self, box: Sandbox, folder: Path, groups: Mapping[str, Sequence[str]], variables: Mapping[str, Any]
    ) -> None:
        self.box, self.folder = box, folder
        settings = f"-F {box.places.ssh_config}"
        connection = {
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_extra_args": settings,
            "ansible_sftp_extra_args": settings,
            "kinemill_become": False,
        }
        children = {group: {"hosts": dict.fromkeys(nodes)} for group, nodes in groups.items()}
        inventory = {"all": {"children": children, "vars": {**connection, **variables}}}
        (folder / "hosts.yml").write_text(yaml.safe_dump(inventory), encoding="utf-8")

    def run(
        self, roles: Sequence[str], *arguments: str, hosts: str = "all", **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run roles; variables win over the inventory's."""
        play = {"name": "Roles", "hosts": hosts, "gather_facts": False, "roles": list(roles), "vars": variables}
        (self.folder / "play.yml").write_text(yaml.safe_dump([play]), encoding="utf-8")
        found: list[str | Path] = ["--inventory", self.folder / "hosts.yml", self.folder / "play.yml"]
        return playbook(*found, *arguments, deadline_s=900)

    def apply(self, roles: Sequence[str], *arguments: str, hosts: str = "all", **variables: Any) -> dict[str, int]:
        """Run roles that must succeed; the counts of all nodes together."""
        done = self.run(roles, *arguments, hosts=hosts, **variables)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        total: dict[str, int] = {}
        for node in self.box.nodes:
            if f"\n{node} " in done.stdout:
                for key, value in recap(done.stdout, node).items():
                    total[key] = total.get(key, 0) + value
        return total


# A disk that vanishes with the process that holds it, so that a killed test leaves none on the machine.
_DISK = """
import fcntl, os, struct, sys, time
size, serial, link = int(sys.argv[1]), sys.argv[2], sys.argv[3]
def node(path, kind, major, minor):
    try: os.mknod(path, 0o600 | kind, os.makedev(major, minor))
    except FileExistsError: pass
node('/dev/loop-control', 0o020000, 10, 237)
backing = os.open('/var/lib/' + serial, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(backing, size)
while True:
    number = fcntl.ioctl(os.open('/dev/loop-control', os.O_RDWR), 0x4C82)
    node(f'/dev/loop{number}', 0o060000, 7, number)
    held = os.open(f'/dev/loop{number}', os.O_RDWR)
    info = struct.pack('=5Q4I64s64s32s2Q', 0, 0, 0, 0, 0, 0, 0, 0, 4, b'', b'', b'', 0, 0)
    try: fcntl.ioctl(held, 0x4C0A, struct.pack('=II', backing, 0) + info + bytes(64)); break
    except OSError: os.close(held)
os.makedirs('/run/udev/data', exist_ok=True); os.makedirs(os.path.dirname(link), exist_ok=True)
with open(f'/run/udev/data/b7:{number}', 'w') as data: data.write(f'E:ID_SERIAL_SHORT={serial}\\n')
os.symlink(f'/dev/loop{number}', link)
time.sleep(10**6)
"""


@contextmanager
def disk(box: Sandbox, node: str, serial: str, *, size_mb: int = 64) -> Iterator[str]:
    """A disk of a node: a loop device with a serial number and a name below /dev/disk/by-id.

    Yields:
        Its name.
    """
    link = f"/dev/disk/by-id/stand-in-{serial}"
    words = ["systemd-run", "--quiet", f"--unit=disk-{serial}", "python3", "-c", _DISK]
    box.exec(node, [*words, str(size_mb << 20), serial, link])
    try:
        wait_for(
            "the stand-in of a disk", lambda: box.exec(node, ["test", "-e", link], check=False).returncode == 0 or None
        )
        yield link
    finally:
        box.exec(node, ["systemctl", "stop", f"disk-{serial}"], check=False)
        box.exec(node, ["rm", "-f", link, f"/var/lib/{serial}"], check=False)
