"""Who orthogonalises which matrix: deterministic, from shapes alone, the same answer on every rank.

Owners are *positions* in the exchange buffer, not ranks, so that the plan of one node is the plan of
every node of that size: replicas then batch the same matrices together and compute the same bits.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bucket", "Matrix", "Plan", "assign", "listing", "make_plan", "ns_flops", "plan_hash"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One parameter that Muon steps, as a matrix."""

    index: int
    """Position among all of the optimizer's matrices."""
    name: str
    rows: int
    cols: int
    group: int
    """Parameter group; matrices of two groups are never batched together."""
    dtype: str = "float32"
    trainable: bool = True

    @property
    def numel(self) -> int:
        """Elements."""
        return self.rows * self.cols

    @property
    def kind(self) -> tuple[int, int, int]:
        """What may be batched together."""
        return self.group, self.rows, self.cols


def ns_flops(rows: int, cols: int, steps: int = 5) -> int:
    """FLOPs of one Newton-Schulz pass over an m x n matrix, m <= n: ``steps * (4 m^2 n + 2 m^3)``.

    Two products with the long side (the Gram matrix, the update) and one square one.
    """
    m, n = min(rows, cols), max(rows, cols)
    return steps * (4 * m * m * n + 2 * m**3)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What is exchanged in one go: for each position, the matrices it orthogonalises."""

    slots: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Plan:
    """Owners and buckets for a number of positions."""

    positions: int
    owner: tuple[int, ...]
    """Matrix index -> position."""
    buckets: tuple[Bucket, ...]
    imbalance: float
    """Heaviest position's FLOPs over the mean, minus 1; 0 is perfect."""
    padding: float
    """Share of the exchanged elements that is padding."""

    def owned(self, position: int) -> list[int]:
        """Matrix indices of one position, ascending."""
        return [i for i, p in enumerate(self.owner) if p == position]


def assign(matrices: Sequence[Matrix], positions: int) -> tuple[int, ...]:
    """Longest processing time first: the heaviest matrix to the least loaded position.

    Frozen matrices come last, so they do not spoil the balance of those that move. Ties go to the fewer
    elements, then to the lower position, so that the answer is one.
    """
    order = sorted(matrices, key=lambda m: (not m.trainable, -ns_flops(m.rows, m.cols), m.kind, m.index))
    heap = [(0, 0, p) for p in range(positions)]
    owner = [0] * len(matrices)
    for matrix in order:
        load, elements, position = heapq.heappop(heap)
        owner[matrix.index] = position
        heapq.heappush(heap, (load + ns_flops(matrix.rows, matrix.cols), elements + matrix.numel, position))
    return tuple(owner)


def make_plan(matrices: Sequence[Matrix], positions: int, bucket_bytes: int) -> Plan:
    """Owners by `assign`, then buckets of about `bucket_bytes` bf16 bytes over all positions.

    A position's matrices stand largest first, so equal shapes are neighbours and can be batched, and
    positions with equal loads cut their buckets at the same place, which leaves no padding.
    """
    owner = assign(matrices, positions)
    share = max(1, bucket_bytes // 2 // positions)
    cut: dict[int, list[list[int]]] = {}
    for position in range(positions):
        mine = [m for m in matrices if owner[m.index] == position]
        mine.sort(key=lambda m: (not m.trainable, -ns_flops(m.rows, m.cols), m.kind, m.index))
        start = 0
        for m in mine:
            cut.setdefault(start // share, [[] for _ in range(positions)])[position].append(m.index)
            start += m.numel
    buckets = tuple(Bucket(tuple(tuple(slot) for slot in cut[k])) for k in sorted(cut))
    loads = [0] * positions
    for m in matrices:
        if m.trainable:
            loads[owner[m.index]] += ns_flops(m.rows, m.cols)
    mean = sum(loads) / positions
    size = [m.numel for m in matrices]
    sent = sum(max(sum(size[i] for i in slot) for slot in b.slots) * positions for b in buckets)
    return Plan(
        positions=positions,
        owner=owner,
        buckets=buckets,
        imbalance=max(loads) / mean - 1.0 if mean else 0.0,
        padding=1.0 - sum(size) / sent if sent else 0.0,
    )


def listing(matrices: Sequence[Matrix], others: Sequence[tuple[str, tuple[int, ...], str]]) -> list[str]:
    """One line a parameter, in order: what must be equal on every rank."""
    rows = [f"muon {m.group} {m.name} {m.rows}x{m.cols} {m.dtype}{'' if m.trainable else ' frozen'}" for m in matrices]
    return rows + [f"adamw {name} {'x'.join(map(str, shape))} {dtype}" for name, shape, dtype in others]


def plan_hash(lines: Sequence[str], settings: dict[str, object]) -> str:
    """Hash of the parameters and of everything else that decides what a rank sends and when."""
    text = json.dumps([list(lines), settings], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
