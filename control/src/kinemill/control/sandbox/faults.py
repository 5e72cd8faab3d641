"""Faults that are real: power cuts, reboots, partitions, slow links, full disks, wrong clocks, no packages.

None of them touches this machine: its disk, its clock and its network stay as they are.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from kinemill.control.sandbox import anchor, furnish
from kinemill.control.sandbox.furnish import File
from kinemill.control.sandbox.names import BRIDGE
from kinemill.errors import ConfigError

if TYPE_CHECKING:
    from kinemill.control.sandbox.box import Sandbox

__all__ = ["clock", "cut", "fill_disk", "free_disk", "partition", "proxy", "reboot", "shape"]

_BOOT_DEADLINE_S = 120


def cut(box: Sandbox, node: str) -> None:
    """Power cut: the node's PID 1 and all it runs die at once."""
    leader, nspawn = box.leader(node), box.nspawn_pid(node)
    os.kill(leader, signal.SIGKILL)
    anchor.until(f"end of {node}", lambda: box.nspawn_pid(node) != nspawn, deadline_s=20)


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
        path.unlink(missing_ok=True)


def _unit(name: str) -> str:
    """A unit's name, as a service where it has no suffix.

    Raises:
        ConfigError: It is no unit's name.
    """
    if not name or "/" in name or name.startswith("."):
        raise ConfigError(f"{name!r} is no systemd unit")
    return name if "." in name else f"{name}.service"
