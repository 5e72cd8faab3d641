"""The parts of a node on this machine: its mounts, its network, and how ssh finds it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinemill.control.sandbox import anchor, standins
from kinemill.control.sandbox.names import BRIDGE, PREFIX_BITS, Places

if TYPE_CHECKING:
    from kinemill.control.sandbox.furnish import NodeSpec
    from kinemill.control.sandbox.images import Image

__all__ = ["clear", "make", "write_ssh_config"]


def make(places: Places, spec: NodeSpec, image: Image, address: str) -> None:
    """Mounts and network of a node, in one go inside the sandbox's namespaces."""
    folder = places.node(spec.name)
    for part in ("layer", "root"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    (folder / "net").touch()
    if spec.hardware is not None:
        standins.create(folder / "stand-ins", spec.hardware, seed=spec.name)
    (folder / "stand-ins").mkdir(exist_ok=True)
    port = f"v-{spec.name}"
    script = f"""
    cd {folder}
    mount -t tmpfs -o size={spec.disk},mode=755 kinemill layer
    mkdir layer/up layer/work
    mount -t overlay kinemill root \
      -o lowerdir={image.root},upperdir={folder}/layer/up,workdir={folder}/layer/work,volatile
    unshare --net={folder}/net true
    ip link add {port} type veth peer name eth0 netns {folder}/net
    ip link set {port} master {BRIDGE} up
    nsenter --net={folder}/net sh -euc '
      ip link set lo up
      ip addr add {address}/{PREFIX_BITS} dev eth0
      ip link set eth0 up'
    """
    anchor.inside(places, ["/bin/sh", "-euc", script])


def clear(places: Places, node: str) -> None:
    """Remove what a killed command made of a node; harmless where that is nothing."""
    folder = places.node(node)
    if not folder.is_dir():
        return
    script = f"""
    for part in root layer net; do umount --lazy {folder}/$part 2>/dev/null || :; done
    ip link delete v-{node} 2>/dev/null || :
    """
    anchor.inside(places, ["/bin/sh", "-uc", script])
    shutil.rmtree(folder)
    if places.known_hosts.is_file():
        lines = places.known_hosts.read_text(encoding="ascii").splitlines(keepends=True)
        kept = [line for line in lines if not line.startswith(f"{node} ")]
        places.known_hosts.write_text("".join(kept), encoding="ascii")


def write_ssh_config(places: Places, nodes: Sequence[str]) -> None:
    """Settings for a stock ssh: `ssh -F <this> NODE`."""
    connect = f"{sys.executable} -m kinemill.control.sandbox.connect {places.id} %h %p"
    text = (
        f"Host {' '.join(nodes) or 'none'}\n"
        "  User root\n"
        f"  ProxyCommand {connect}\n"
        f"  IdentityFile {places.key}\n"
        "  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {places.known_hosts}\n"
        "  GlobalKnownHostsFile /dev/null\n"
        "  StrictHostKeyChecking yes\n"
        "  LogLevel ERROR\n"
    )
    temporary = places.ssh_config.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(places.ssh_config)
