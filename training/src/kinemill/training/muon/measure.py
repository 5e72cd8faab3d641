"""Measure, once on a cluster, up to how many nodes the world beats the node. Every rank runs it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn

from kinemill.errors import UsageError
from kinemill.training.muon.cost import MARGIN, Rates, implied_threshold
from kinemill.training.muon.exchange import all_gather
from kinemill.training.muon.groups import Groups, close_groups, open_groups
from kinemill.training.muon.newton_schulz import Backend
from kinemill.training.muon.optimizer import Muon
from kinemill.training.muon.plan import ns_flops
from kinemill.training.muon.topology import Topology, discover

__all__ = ["Measured", "Row", "counts", "measure", "threshold_of"]


@dataclass(frozen=True, slots=True)
class Row:
    """One node count: seconds of an optimizer step, the slowest rank's, median of the repeats."""

    nodes: int
    node_s: float
    world_s: float


@dataclass(frozen=True, slots=True)
class Measured:
    """What a run on a cluster found."""

    rows: tuple[Row, ...]
    node_threshold: int
    """Largest measured count up to which the world won by the margin; what the inventory should say."""
    open_ended: bool
    """The world still won on all nodes: with more nodes, measure again."""
    rates: Rates
    modelled_threshold: int
    """What the cost model says with the measured rates, as a cross-check."""
    topology: str


def counts(nodes: int) -> list[int]:
    """2, 4, 8, ... and all of them."""
    return sorted({2**k for k in range(1, nodes.bit_length()) if 2**k <= nodes} | {nodes})


def threshold_of(rows: Sequence[Row]) -> int:
    """Largest count with a win of the world at it and at every smaller one; 0 if the node wins at once."""
    best = 0
    for row in sorted(rows, key=lambda r: r.nodes):
        if row.world_s >= (1 - MARGIN) * row.node_s:
            break
        best = row.nodes
    return best


def measure(
    shapes: Sequence[tuple[int, int]],
    *,
    device: torch.device,
    bucket_mb: float = 64,
    ns_steps: int = 5,
    repeats: int = 3,
    backend: Backend | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Step both strategies on the first 2, 4, 8, ... nodes. Collective: every rank of the job calls it.

    Parameters are bf16 and their own gradients, so a model takes 2 bytes a parameter and momentum.

    Raises:
        UsageError: No process group, or one node: there is nothing to choose.
    """
    if not dist.is_initialized():
        raise UsageError(
            "measure: start it on every rank, e.g. torchrun ... --no-python kinemill train strategy --measure"
        )
    rank = dist.get_rank()
    topology = discover(rank, dist.get_world_size(), device)
    if len(topology.nodes) < 2:
        raise UsageError("measure: this job has one node; node and world differ from two nodes on")
    params = [nn.Parameter(torch.ones(r, c, dtype=torch.bfloat16, device=device)) for r, c in shapes]
    for p in params:
        p.grad = p.detach()
    rows = []
    ns_s = 0.0
    for nodes in counts(len(topology.nodes)):
        times: dict[str, float] = {}
        for strategy in ("node", "world"):
            found, spent = _time(
                params, topology.first(nodes), strategy, rank, device, bucket_mb, ns_steps, repeats, backend
            )
            times[strategy] = found
            ns_s = spent if strategy == "node" else ns_s
        rows.append(Row(nodes, times["node"], times["world"]))
        say(f"{nodes} nodes: node {times['node'] * 1e3:.1f} ms, world {times['world'] * 1e3:.1f} ms")
    ranks = len(topology.nodes[0])
    work = sum(ns_flops(r, c, ns_steps) for r, c in shapes) / ranks
    rates = _rates(topology, rank, device, work / ns_s if ns_s > 0 else 0.0)
    threshold = threshold_of(rows)
    return Measured(
        rows=tuple(rows),
        node_threshold=threshold,
        open_ended=threshold == rows[-1].nodes,
        rates=rates,
        modelled_threshold=implied_threshold(
            shapes, ranks, rates, steps=ns_steps, bucket_bytes=int(bucket_mb * (1 << 20))
        ),
        topology=topology.describe(),
    )


def _largest(value: float, device: torch.device) -> float:
    """The slowest rank's time, known to all."""
    found = torch.tensor([value], dtype=torch.float64, device=device)
    dist.all_reduce(found, op=dist.ReduceOp.MAX)
    return float(found.item())


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def _time(  # noqa: PLR0917 - one measurement, spelled out
    params: list[nn.Parameter],
    topology: Topology,
    strategy: str,
    rank: int,
    device: torch.device,
    bucket_mb: float,
    ns_steps: int,
    repeats: int,
    backend: Backend | None,
) -> tuple[float, float]:
    """(step seconds, seconds of it in Newton-Schulz); ranks outside the topology only keep step."""
    groups = open_groups(topology, rank, device)  # made by all ranks, used by those inside
    optimizer: Muon | None = None
    if rank in topology.ranks:
        optimizer = Muon(
            params,
            lr=0.0,
            strategy=strategy,
            topology=topology,
            bucket_mb=bucket_mb,
            ns_steps=ns_steps,
            check_every=0,
            ns_backend=backend,
        )
    times, before = [], 0.0
    for repeat in range(repeats + 1):
        dist.barrier()
        if repeat == 1 and optimizer is not None:
            before = optimizer.counters.ns.seconds
        start = _now(device)
        if optimizer is not None:
            optimizer.step()
        took = _largest(_now(device) - start, device)
        if repeat:
            times.append(took)
    spent = (optimizer.counters.ns.seconds - before) / repeats if optimizer is not None else 0.0
    if optimizer is not None:
        optimizer.close()
    close_groups(groups)
    return statistics.median(times), _largest(spent, device)


def _rates(topology: Topology, rank: int, device: torch.device, flops: float) -> Rates:
    """Bandwidths from 16 MiB all-gathers, latency from a 1-element all-reduce."""
    groups: Groups = open_groups(topology, rank, device)
    nodes, ranks = len(topology.nodes), len(topology.nodes[0])

    def bandwidth(group: dist.ProcessGroup | None, streams: int) -> float:
        if group is None:
            return 1e15
        members = dist.get_world_size(group)
        send = torch.zeros((16 << 20) // 2 // members, dtype=torch.bfloat16, device=device)
        out = send.new_empty(members * send.numel())
        all_gather(out, send, group=group)
        dist.barrier()
        start = _now(device)
        for _ in range(3):
            all_gather(out, send, group=group)
        return 3 * (members - 1) * send.nbytes * streams / _largest(_now(device) - start, device)

    fabric = bandwidth(groups.cross, ranks) if groups.cross is not None else bandwidth(groups.world, 1)
    link = bandwidth(groups.node, 1)
    token = torch.zeros(1, device=device)
    start = _now(device)
    for _ in range(10):
        dist.all_reduce(token, group=groups.world)
    latency = _largest(_now(device) - start, device) / 10 / (2 * max(1, nodes * ranks - 1))
    close_groups(groups)
    return Rates(flops=max(flops, 1.0), fabric=fabric, link=link, latency_s=latency)
