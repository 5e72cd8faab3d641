"""Which sharding is faster, by arithmetic: the time of one optimizer step over the node and over the world.

A step has three stages that overlap bucket by bucket: Newton-Schulz on the owner, the exchange over the
fabric (world only), the exchange inside the node. With c buckets it takes
``(sum of stages + (c - 1) * longest stage) / c`` plus a latency per hop and bucket.

Node count alone decides nothing: sharding over N nodes saves (1 - 1/N) of the arithmetic and costs (1 - 1/N)
of the bytes. It enters through latency, through matrices that run out, and through the fabric's real speed.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass

from kinemill.training.muon.plan import ns_flops
from kinemill.training.muon.site import MuonSettings

__all__ = ["MARGIN", "Estimate", "Rates", "estimate", "implied_threshold", "scan", "world_wins"]

MARGIN = 0.10
"""The world has to be faster than the node by this share: an equal choice keeps the fabric free."""

_SCAN = (*range(2, 65), 80, 96, 128, 192, 256, 384, 512, 768, 1024)


@dataclass(frozen=True, slots=True)
class Rates:
    """What the model needs to know of a cluster."""

    flops: float
    """Newton-Schulz, FLOP/s of a rank."""
    fabric: float
    """Out of a node, one way, bytes/s reached."""
    link: float
    """Into a rank from its node, bytes/s reached."""
    latency_s: float
    """A collective's cost per hop."""

    @staticmethod
    def from_site(site: MuonSettings) -> Rates | None:
        """Rates of the inventory; None without its fabric figure."""
        if site.fabric_gbps is None:
            return None
        return Rates(
            flops=site.rank_tflops * 1e12,
            fabric=site.fabric_gbps / 8 * 1e9 * site.efficiency,
            link=site.link_gbytes_per_s * 1e9 * site.efficiency,
            latency_s=site.fabric_latency_us / 1e6,
        )


@dataclass(frozen=True, slots=True)
class Estimate:
    """One step, seconds; and the bytes a node sends to the fabric."""

    nodes: int
    node_s: float
    world_s: float
    world_fabric_bytes: float

    @property
    def faster(self) -> str:
        """`world` only where it wins by `MARGIN`."""
        return "world" if self.world_s < (1 - MARGIN) * self.node_s else "node"


def _heaviest(flops: Sequence[int], owners: int) -> int:
    """Load of the busiest owner under longest-processing-time-first."""
    if owners >= len(flops):
        return max(flops)
    heap = [0] * owners
    for work in sorted(flops, reverse=True):
        heapq.heapreplace(heap, heap[0] + work)
    return max(heap)


def _pipeline(stages: Sequence[float], buckets: int) -> float:
    return (sum(stages) + (buckets - 1) * max(stages)) / buckets


def estimate(
    shapes: Sequence[tuple[int, int]],
    nodes: int,
    ranks: int,
    rates: Rates,
    *,
    steps: int = 5,
    bucket_bytes: int = 64 << 20,
) -> Estimate:
    """Predict one step.

    Args:
        shapes: (rows, cols) of every matrix.
        nodes: N.
        ranks: Ranks of a node, R.
        rates: The cluster.
        steps: Newton-Schulz iterations.
        bucket_bytes: As in `Muon`.

    Source: ring all-gathers move (k - 1) / k of the bytes past each of k members.
    """
    flops = [ns_flops(r, c, steps) for r, c in shapes]
    size = 2.0 * sum(r * c for r, c in shapes)  # bf16 updates
    link = size * (ranks - 1) / ranks / rates.link
    fabric_bytes = size * (nodes - 1) / nodes

    def buckets(owners: int) -> int:
        return max(1, min(math.ceil(size / bucket_bytes), len(shapes) // owners))

    c = buckets(ranks)
    node = _pipeline([_heaviest(flops, ranks) / rates.flops, link], c) + c * rates.latency_s * (ranks - 1)
    c = buckets(ranks * nodes)
    stages = [_heaviest(flops, ranks * nodes) / rates.flops, fabric_bytes / rates.fabric, link]
    world = _pipeline(stages, c) + c * rates.latency_s * (nodes + ranks - 2)
    return Estimate(nodes, node, world if nodes > 1 else node, fabric_bytes)


def world_wins(
    shapes: Sequence[tuple[int, int]],
    nodes: int,
    ranks: int,
    rates: Rates,
    *,
    steps: int = 5,
    bucket_bytes: int = 64 << 20,
) -> bool:
    """Whether the model prefers the world at `nodes`."""
    if nodes < 2:
        return False
    return estimate(shapes, nodes, ranks, rates, steps=steps, bucket_bytes=bucket_bytes).faster == "world"


def scan(
    shapes: Sequence[tuple[int, int]], ranks: int, rates: Rates, *, steps: int = 5, bucket_bytes: int = 64 << 20
) -> list[Estimate]:
    """Estimates for 2 to 1024 nodes."""
    return [estimate(shapes, n, ranks, rates, steps=steps, bucket_bytes=bucket_bytes) for n in _SCAN]


def implied_threshold(
    shapes: Sequence[tuple[int, int]], ranks: int, rates: Rates, *, steps: int = 5, bucket_bytes: int = 64 << 20
) -> int:
    """Largest scanned node count at which the world wins; 0 if it never does."""
    wins = [e.nodes for e in scan(shapes, ranks, rates, steps=steps, bucket_bytes=bucket_bytes) if e.faster == "world"]
    return max(wins, default=0)
