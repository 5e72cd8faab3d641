"""What is put into a node before its first boot: identity, keys, package sources, stand-ins, files, units."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kinemill.control.sandbox import images, standins, stub
from kinemill.control.sandbox.host import run
from kinemill.control.sandbox.names import GATEWAY, PROXY_PORT
from kinemill.control.sandbox.standins import Hardware
from kinemill.errors import NotFoundError

__all__ = ["File", "NodeSpec", "furnish", "install_library", "put"]

# Home of the user that ssh logs in as, on a node.
_HOME = "/root"


@dataclass(frozen=True, slots=True)
class File:
    """A file to put into a node.

    Attributes:
        text: Its content.
        mode: Its permissions.
        owner: User and group by name, as the node knows them.
    """

    text: str
    mode: int = 0o644
    owner: str = "root"


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node to bring up.

    Attributes:
        name: Its host name.
        image: One of `images.RECIPES`.
        disk: Size of its writable layer, as mount takes it; it is memory until it is used.
        hardware: What its stand-ins pretend; None for a node without any.
        files: Path -> content, put into the node before its first boot.
        links: Path -> target, likewise.
        units: systemd units enabled before its first boot.
        binds: Further folders of this machine: `SOURCE:PLACE`, read-only.
    """

    name: str
    image: str = "bookworm-slurm"
    disk: str = "2G"
    hardware: Hardware | None = field(default_factory=Hardware)
    files: Mapping[str, File] = field(default_factory=dict)
    units: Sequence[str] = ()
    binds: Sequence[str] = ()


def furnish(root: Path, spec: NodeSpec, *, public_key: str, host_key: Path, proxy: bool) -> None:
    """Fill a node's root.

    Args:
        root: The root folder, reachable from this machine.
        spec: What the node shall be.
        public_key: What root's ssh accepts.
        host_key: The node's private host key; its public one lies beside it.
        proxy: Whether it has a package source.
    """
    files: dict[str, File] = {
        "/etc/hostname": File(f"{spec.name}\n"),
        "/etc/hosts": File("127.0.0.1 localhost\n::1 localhost\n"),
        "/etc/resolv.conf": File("# No name service here: names are in /etc/hosts.\n"),
        "/etc/ssh/ssh_host_ed25519_key": File(host_key.read_text(encoding="ascii"), 0o600),
        "/etc/ssh/ssh_host_ed25519_key.pub": File(host_key.with_suffix(".pub").read_text(encoding="ascii")),
        f"{_HOME}/.ssh/authorized_keys": File(public_key, 0o600),
    }
    if proxy:
        suite = images.recipe_of(spec.image).suite
        files["/etc/apt/sources.list"] = File(f"deb http://{GATEWAY}:{PROXY_PORT}/debian {suite} main\n")
        settings = [f"{line}\n" for line in images.apt_settings() if "Proxy" not in line]
        settings.append('APT::Install-Recommends "false";\n')
        files["/etc/apt/apt.conf.d/90sandbox"] = File("".join(settings))
    if spec.hardware is not None:
        devices = "".join(f"{line}\n" for line in standins.device_lines(spec.hardware))
        files["/etc/tmpfiles.d/stand-ins.conf"] = File(devices)
        data = Path(__file__).parent / "data"
        for place, source in standins.program_names().items():
            files[place] = File((data / source).read_text(encoding="utf-8"), 0o755)
        install_library(root, "whole")
    files |= dict(spec.files)
    for path, one in files.items():
        put(root, path, one)
    if spec.units:
        run(["systemctl", f"--root={root}", "--quiet", "enable", *spec.units])


def install_library(root: Path, variant: str) -> None:
    """Put a variant of the stub library into a node: `whole`, `partial`, `empty`, or `absent`."""
    target = root / standins.library_folder().lstrip("/") / "libnvidia-ml.so.1"
    if variant == "absent":
        target.unlink(missing_ok=True)
        return
    source = stub.library(variant)
    temporary = target.with_name(f".{target.name}.new")
    shutil.copyfile(source, temporary)
    temporary.chmod(0o755)
    temporary.replace(target)


def put(root: Path, place: str, one: File) -> None:
    """Write a file below a node's root, never through a link that leads out of it."""
    path = root / place.lstrip("/")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, one.mode)
    with os.fdopen(fd, "w", encoding="utf-8") as handle:
        handle.write(one.text)
        os.fchmod(handle.fileno(), one.mode)
        if one.owner != "root":
            uid, gid = _ids(root, one.owner)
            os.fchown(handle.fileno(), uid, gid)
    if path.parent.name == ".ssh":
        path.parent.chmod(0o700)


def _ids(root: Path, user: str) -> tuple[int, int]:
    for line in (root / "etc" / "passwd").read_text(encoding="utf-8").splitlines():
        fields = line.split(":")
        if fields[0] == user:
            return int(fields[2]), int(fields[3])
    raise NotFoundError(f"the image has no user {user!r}")
