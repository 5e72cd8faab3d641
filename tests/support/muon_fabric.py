"""A fabric in miniature: one network namespace a node, veth pairs to a bridge, tbf for bandwidth, counters for bytes.

Everything lives in namespaces that are made here and removed again; the host's own network is not touched.
Needs root. Arithmetic is emulated by sleeping, because a dozen ranks share the cores of one machine; the
transport, the bytes and the optimizer are the real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Fabric", "drop", "enter", "fabric", "flat_parameter_gather", "hold", "quiet_steps", "steps", "why_not"]

CARD = "fab0"
SUBNET = "10.77.7"


def why_not() -> tuple[str, str] | None:
    """Why this machine cannot do it, if it cannot, and what would."""
    if os.geteuid() != 0:
        return "network namespaces need root", "make full-muon as root"
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        return f"no {' and no '.join(missing)} here", "make full-muon with iproute2 installed"
    probe = subprocess.run(["ip", "netns", "add", f"kmprobe{os.getpid()}"], check=False, capture_output=True)
    if probe.returncode != 0:
        return "no right to make network namespaces", "make full-muon outside an unprivileged container"
    subprocess.run(["ip", "netns", "del", f"kmprobe{os.getpid()}"], check=True)
    return None


class Fabric:
    """Nodes on one switch."""

    def __init__(self, nodes: int) -> None:
        """Make the namespaces.

        Args:
            nodes: How many.
        """
        self.nodes = nodes
        self._mark = f"km{os.getpid()}"
        self._made: list[str] = []
        try:
            self._build()
        except subprocess.CalledProcessError:
            self.close()
            raise

    def name(self, node: int) -> str:
        """Network namespace of a node."""
        return f"{self._mark}n{node}"

    def address(self, node: int) -> str:
        """Its address on the fabric."""
        return f"{SUBNET}.{node + 1}"

    def _build(self) -> None:
        hub = f"{self._mark}hub"
        self._namespace(hub)
        _run("ip", "-n", hub, "link", "add", "br0", "type", "bridge")
        _run("ip", "-n", hub, "link", "set", "br0", "mtu", "9000", "addrgenmode", "none", "up")
        for node in range(self.nodes):
            ns, port = self.name(node), f"p{node}"
            self._namespace(ns)
            _run("ip", "-n", hub, "link", "add", port, "mtu", "9000", "type", "veth", "peer", CARD, "netns", ns)
            _run("ip", "-n", hub, "link", "set", port, "master", "br0", "addrgenmode", "none", "up")
            _run("ip", "-n", ns, "link", "set", CARD, "address", _mac(node), "mtu", "9000", "addrgenmode", "none")
            _run("ip", "-n", ns, "addr", "add", f"{self.address(node)}/24", "dev", CARD)
            _run("ip", "-n", ns, "link", "set", CARD, "up")
            _run("ip", "-n", ns, "link", "set", "lo", "up")
        for node in range(self.nodes):
            for other in set(range(self.nodes)) - {node}:  # no ARP among the bytes that are counted
                where = ("dev", CARD, "lladdr", _mac(other), "nud", "permanent")
                _run("ip", "-n", self.name(node), "neigh", "replace", self.address(other), *where)

    def _namespace(self, name: str) -> None:
        _run("ip", "netns", "add", name)
        self._made.append(name)

    def limit(self, mbit: float | None) -> None:
        """Let every node send at most so many Mbit/s; None lifts the limit."""
        for node in range(self.nodes):
            if mbit is None:
                subprocess.run(
                    ["tc", "-n", self.name(node), "qdisc", "del", "dev", CARD, "root"], check=False, capture_output=True
                )
                continue
            shape = ("tbf", "rate", f"{mbit}mbit", "burst", "64kb", "latency", "400ms")
            _run("tc", "-n", self.name(node), "qdisc", "replace", "dev", CARD, "root", *shape)

    def sent(self) -> list[int]:
        """Bytes that each node has put on the fabric, headers included, once nothing is under way any more.

        Acknowledgements are delayed by up to 40 ms, so two equal readings 0.1 s apart are waited for.
        """
        deadline = time.monotonic() + 30
        last = self._read()
        while time.monotonic() < deadline:
            time.sleep(0.1)
            now = self._read()
            if now == last:
                return now
            last = now
        raise RuntimeError("the fabric does not come to rest")

    def _read(self) -> list[int]:
        found = []
        for node in range(self.nodes):
            out = subprocess.run(
                ["ip", "-n", self.name(node), "-s", "-j", "link", "show", CARD], check=True, capture_output=True
            ).stdout
            found.append(int(json.loads(out)[0]["stats64"]["tx"]["bytes"]))
        return found

    def close(self) -> None:
        """Remove the namespaces, and with them the cards and the bridge."""
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        self._made.clear()


@contextlib.contextmanager
def fabric(nodes: int) -> Iterator[Fabric]:
    """A fabric for a block."""
    found = Fabric(nodes)
    try:
        yield found
    finally:
        found.close()


def _mac(node: int) -> str:
    return f"02:00:00:00:77:{node + 1:02x}"


def _run(*argv: str) -> None:
    subprocess.run(list(argv), check=True, capture_output=True)


def enter(name: str) -> None:
    """Move this process (before it has threads) into a named network namespace."""
    clone_newnet = 0x40000000
    handle = os.open(f"/run/netns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).setns(handle, clone_newnet) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter network namespace {name}")
    finally:
        os.close(handle)


# ---- what the workers run

_held: dict[str, Any] = {}


def hold(
    rank: int,
    shapes: Sequence[tuple[int, int]],
    kwargs: dict[str, Any],
    nodes: tuple[tuple[int, ...], ...],
    flops_per_s: float | None,
) -> str | None:
    """Make an optimizer over some nodes and keep it; ranks outside only help to make its groups.

    Returns:
        What it decided, on ranks inside.
    """
    import torch
    from torch import Tensor, nn

    from kinemill.training import Muon
    from kinemill.training.muon.groups import open_groups
    from kinemill.training.muon.plan import ns_flops
    from kinemill.training.muon.topology import Topology

    def backend(batch: Tensor, coefficients: Any, eps: float) -> Tensor:
        if flops_per_s is not None:
            time.sleep(batch.size(0) * ns_flops(batch.size(1), batch.size(2), len(coefficients)) / flops_per_s)
        return batch

    if "site" in kwargs:
        from kinemill.training.muon.site import MuonSettings

        kwargs = {**kwargs, "site": MuonSettings(**kwargs["site"])}
    topology = Topology(nodes)
    groups = open_groups(topology, rank, torch.device("cpu"))
    _held["groups"] = groups
    if rank not in topology.ranks:
        return None
    params = [nn.Parameter(torch.ones(shape)) for shape in shapes]
    for p in params:
        p.grad = p.detach().clone()
    optimizer = Muon(params, topology=topology, check_every=0, ns_backend=backend, **kwargs)
    _held["optimizer"], _held["params"] = optimizer, params
    return optimizer.decision.strategy


def steps(rank: int, count: int) -> list[float]:
    """Step what is held; seconds of each step, by the slowest rank's clock."""
    import torch
    import torch.distributed as dist

    found = []
    for _ in range(count):
        groups = _held["groups"]
        if "optimizer" not in _held:
            return []
        if groups.world is not None:
            dist.barrier(group=groups.world)
        start = time.perf_counter()
        _held["optimizer"].step()
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64)
        dist.all_reduce(took, op=dist.ReduceOp.MAX, group=groups.world)
        found.append(float(took.item()))
    return found


def quiet_steps(rank: int, count: int) -> dict[str, Any]:
    """Step without a barrier or a clock between, so that nothing but the optimizer's own bytes is sent."""
    optimizer = _held.get("optimizer")
    if optimizer is None:
        return {}
    before = dict(optimizer.counters.bytes_out)
    for _ in range(count):
        optimizer.step()
    sent = {k: v - before[k] for k, v in optimizer.counters.bytes_out.items()}
    return {"bytes": sent, "padding": optimizer.plan.padding, "imbalance": optimizer.plan.imbalance}


def drop(rank: int) -> None:
    """Close what is held; its groups stay for the next optimizer on the same nodes."""
    if "optimizer" in _held:
        _held.pop("optimizer").close()
    _held.clear()


def flat_parameter_gather(rank: int, elements: int) -> None:
    """What the original reference implementation sends a step: fp32 parameters, one flat all-gather over all ranks."""
    import torch
    import torch.distributed as dist

    from kinemill.training.muon.exchange import all_gather

    world = dist.get_world_size()
    mine = torch.ones(-(-elements // world))
    all_gather(torch.empty(world * mine.numel()), mine)
