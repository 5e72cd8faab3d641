"""Faults that are real: power cuts, reboots, partitions, slow links, full disks, wrong clocks, no packages.

None of them touches this machine: its disk, its clock and its network stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from kinemill.control.sandbox import anchor, furnish
from kinemill.control.sandbox.furnish import File
from kinemill.control.sandbox.names import BRIDGE, GATEWAY
from kinemill.errors import ConfigError

if TYPE_CHECKING:
    from kinemill.control.sandbox.box import Sandbox

__all__ = ["clock", "cut", "fill_disk", "free_disk", "partition", "proxy", "reboot", "shape", "stranger"]

_BOOT_DEADLINE_S = 300
# Addresses that are kept for examples, so that they are nobody's.
_STRANGER, _STRANGERS = "192.0.2.9", "192.0.2.0/24"
_KNOCK = """
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=float(sys.argv[3])).close()
    print("open")
except ConnectionRefusedError:
    print("refused")
except (TimeoutError, OSError):
    print("silent")
"""


def cut(box: Sandbox, node: str) -> None:
    """Power cut: the node's PID 1 and all it runs die at once."""
    leader, nspawn = box.leader(node), box.nspawn_pid(node)
    os.kill(leader, signal.SIGKILL)
    anchor.until(f"end of {node}", lambda: box.nspawn_pid(node) != nspawn, deadline_s=_BOOT_DEADLINE_S)


def reboot(box: Sandbox, node: str) -> None:
    """Reboot a node through its own systemd and wait until it is back."""
    before = box.nspawn_pid(node)
    box.exec(node, ["systemctl", "reboot"], check=False)
    anchor.until(
        f"{node} is down and up", lambda: box.nspawn_pid(node) not in (None, before), deadline_s=_BOOT_DEADLINE_S
    )
    box.wait([node])


def partition(box: Sandbox, nodes: Sequence[str], *, heal: bool = False) -> None:
    """Drop all packets from and to nodes, without a word to either side; or let them through again."""
    for node in nodes:
        box.address(node)
        # Off the bridge: both ends keep their carrier, and no packet arrives.
        where = ["master", BRIDGE] if heal else ["nomaster"]
        anchor.inside(box.places, ["ip", "link", "set", f"v-{node}", *where])


def shape(box: Sandbox, node: str, rate: str | None) -> None:
    """Limit a node's bandwidth in both directions.

    Args:
        node: The node.
        rate: As tc takes it, such as `10mbit`; None lifts the limit.
    """
    box.address(node)
    net = box.places.node(node) / "net"
    for prefix, device in ((["sh", "-c", 'exec "$@"', "sh"], f"v-{node}"), (["nsenter", f"--net={net}"], "eth0")):
        if rate is None:
            anchor.inside(box.places, [*prefix, "tc", "qdisc", "del", "dev", device, "root"], check=False)
        else:
            limit = ["tbf", "rate", rate, "burst", "64k", "latency", "400ms"]
            anchor.inside(box.places, [*prefix, "tc", "qdisc", "replace", "dev", device, "root", *limit])


def fill_disk(box: Sandbox, node: str, *, leave_bytes: int = 0) -> int:
    """Fill a node's disk; its layer is capped, so this machine's disk is not touched.

    Args:
        node: The node.
        leave_bytes: What stays free.

    Returns:
        Bytes written.
    """
    path = box.root(node) / ".filler"
    usage = os.statvfs(box.root(node))
    size = usage.f_bavail * usage.f_frsize - leave_bytes
    if size > 0:
        with path.open("ab") as handle:
            os.posix_fallocate(handle.fileno(), 0, handle.tell() + size)
    return max(size, 0)


def free_disk(box: Sandbox, node: str) -> None:
    """Take back what `fill_disk` wrote."""
    (box.root(node) / ".filler").unlink(missing_ok=True)


def clock(box: Sandbox, node: str, services: Sequence[str], offset_s: int) -> None:
    """Let services of a node see another time; the machine's clock is not touched.

    Args:
        node: The node.
        services: Units to step; they are restarted.
        offset_s: Seconds ahead (or behind, if negative); 0 puts them right again.
    """
    folder = f"/usr/lib/{os.uname().machine}-linux-gnu/faketime"
    text = f"[Service]\nEnvironment=LD_PRELOAD={folder}/libfaketime.so.1 FAKETIME={offset_s:+d}s\n"
    text += "Environment=FAKETIME_DONT_FAKE_MONOTONIC=1\n"
    for service in services:
        drop_in = f"/etc/systemd/system/{_unit(service)}.d/faketime.conf"
        if offset_s:
            furnish.put(box.root(node), drop_in, File(text))
        else:
            (box.root(node) / drop_in.lstrip("/")).unlink(missing_ok=True)
    box.exec(node, ["systemctl", "daemon-reload"])
    box.exec(node, ["systemctl", "restart", *services])


def _is_dead(pid: int) -> bool:
    return not anchor.alive(pid)


def proxy(box: Sandbox, *, on: bool) -> None:
    """Give the nodes their way to packages, or take it away."""
    if on:
        box.start_relay()
        return
    for name in ("proxy", "relay"):
        path = box.places.home / f"{name}.pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.read_text())
            if pid in anchor.pids(box.places):
                os.kill(pid, signal.SIGKILL)
                # Until it is gone, its port is taken and its socket takes connections.
                anchor.until(f"end of the {name}", partial(_is_dead, pid), deadline_s=_BOOT_DEADLINE_S)
        path.unlink(missing_ok=True)


@contextlib.contextmanager
def stranger(box: Sandbox, *, deadline_s: float = 4) -> Iterator[Callable[[str, int], str]]:
    """Somebody on the nodes' wire whose address is of another network, and to whom the nodes would answer.

    Args:
        box: The sandbox.
        deadline_s: How long it waits for an answer.

    Yields:
        `knock(node, port)`: `open`, `refused` (nobody listens, but packets pass), or `silent`.
    """
    net = box.places.home / "stranger"
    net.touch()
    script = f"""
    unshare --net={net} true
    ip link add v-stranger type veth peer name eth0 netns {net}
    ip link set v-stranger master {BRIDGE} up
    nsenter --net={net} sh -euc '
      ip addr add {_STRANGER}/24 dev eth0
      ip link set eth0 up
      ip route add {GATEWAY.rsplit(".", 1)[0]}.0/24 dev eth0'
    """

    def knock(node: str, port: int) -> str:
        words = ["nsenter", f"--net={net}", sys.executable, "-c", _KNOCK]
        done = anchor.inside(box.places, [*words, box.address(node), str(port), str(deadline_s)])
        return str(done.stdout.strip())

    nodes = [node for node in box.nodes if box.nspawn_pid(node) is not None]
    try:
        anchor.inside(box.places, ["/bin/sh", "-euc", script])
        for node in nodes:
            box.exec(node, ["ip", "route", "replace", _STRANGERS, "dev", "eth0"])
        yield knock
    finally:
        for node in nodes:
            box.exec(node, ["ip", "route", "delete", _STRANGERS], check=False)
        clean = f"ip link delete v-stranger; umount --lazy {net}; rm -f {net}"
        anchor.inside(box.places, ["/bin/sh", "-c", clean], check=False)


def _unit(name: str) -> str:
    """A unit's name, as a service where it has no suffix.

    Raises:
        ConfigError: It is no unit's name.
    """
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is no systemd unit")
    return name if "." in name else f"{name}.service"
