"""Moving the orthogonalised updates, in bfloat16, bucket by bucket, while the next bucket is computed.

Two exchanges share one interface:

* `WholeExchange`: parameters are whole on each rank. A slot per position, one or two all-gathers.
* `ShardExchange`: rows are sharded inside the node (HSDP). Rows to the owner, update back as rows.

Over the world both go in two levels: first between the ranks with the same position on every node, then
inside the node. A flat ring would push (W - 1) / W of the bytes through each node's link instead of
(N - 1) / N.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kinemill.errors import UnavailableError
from kinemill.training.muon.counters import Counters
from kinemill.training.muon.groups import Groups
from kinemill.training.muon.layout import rows_of
from kinemill.training.muon.plan import Matrix

# torch 2.13 renamed it and warns at the old name; earlier ones know the old name only.
all_gather: Callable[..., Any] = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

__all__ = ["Exchange", "Job", "ShardExchange", "WholeExchange", "all_gather", "lost", "make_exchange", "make_job"]


@dataclass(slots=True)
class Job:
    """One bucket of one step, cut down to the matrices that have a gradient."""

    number: int
    slots: tuple[tuple[int, ...], ...]
    slot: int
    """Elements of the largest slot: what every position sends."""
    where: dict[int, int]
    """Matrix -> offset inside its slot."""
    flight: list[tuple[Any, str, Tensor]] = field(default_factory=list)
    """Collective under way, its kind, and what it sends, which has to live until it is through; at most one."""
    buffer: Tensor | None = None
    stage: int = 0
    inputs: Tensor | None = None
    packed: Tensor | None = None
    arrived: dict[tuple[int, int], int] = field(default_factory=dict)
    """(part of the node, matrix) -> where its rows begin in `inputs`."""
    returned: dict[int, int] = field(default_factory=dict)
    """Matrix -> where this rank's rows of the update begin in `packed`."""


def make_job(number: int, slots: Sequence[Sequence[int]], matrices: Sequence[Matrix], live: Sequence[bool]) -> Job:
    """Lay the live matrices of a bucket out in slots."""
    kept = tuple(tuple(i for i in slot if live[i]) for slot in slots)
    where: dict[int, int] = {}
    largest = 0
    for slot in kept:
        at = 0
        for i in slot:
            where[i] = at
            at += matrices[i].numel
        largest = max(largest, at)
    return Job(number, kept, largest, where)


class Exchange:
    """What both exchanges share: launching, waiting, counting, and naming what broke."""

    positions: int = 1
    position: int = 0

    def __init__(self, matrices: Sequence[Matrix], groups: Groups, counters: Counters, device: torch.device) -> None:
        """Args: matrices by index; this rank's groups; where to count; where buffers live."""
        self.matrices, self.groups, self.counters, self.device = matrices, groups, counters, device

    def prepare(self, job: Job, updates: dict[int, Tensor]) -> None:
        """Send what owners need from other ranks; `updates` holds local pieces by matrix."""

    def source(self, job: Job, index: int, out: Tensor) -> bool:
        """Fill `out` (rows, cols) with what has to be orthogonalised; False if it lies whole on this rank."""
        return False

    def start(self, job: Job, send: Tensor) -> None:
        """Begin to send this position's slot."""
        job.buffer, job.stage = send, 0
        self._launch(job)

    def advance(self, job: Job) -> None:
        """Begin the next stage, if there is one, once the present one is through."""
        if job.flight and job.stage + 1 < self._stages():
            self._settle(job)
            job.stage += 1
            self._launch(job)

    def finish(self, job: Job) -> None:
        """Wait until everything has arrived."""
        while job.flight:
            self._settle(job)
            job.stage += 1
            self._launch(job)

    def result(self, job: Job, position: int, index: int) -> Tensor:
        """This rank's piece of a finished update of a matrix of `position`, 2-dimensional and contiguous."""
        raise NotImplementedError

    def rank_at(self, position: int) -> int:
        """Global rank at a position of this exchange."""
        raise NotImplementedError

    def _stages(self) -> int:
        raise NotImplementedError

    def _launch(self, job: Job) -> None:
        raise NotImplementedError

    def _settle(self, job: Job) -> None:
        work, kind, _ = job.flight.pop()
        with self.counters.exposed.running():
            self._wait(work, f"bucket {job.number}, exchange over the {kind} group")

    def _wait(self, work: Any, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as exc:
            raise lost(self.groups.rank, what, exc) from exc

    def _all_gather(self, job: Job, group: dist.ProcessGroup, kind: str) -> None:
        if job.buffer is None:
            raise UnavailableError(f"muon: bucket {job.number} has nothing to send")
        members = dist.get_world_size(group)
        out = job.buffer.new_empty(members * job.buffer.numel())
        try:
            work = all_gather(out, job.buffer, group=group, async_op=True)
        except RuntimeError as exc:
            raise lost(self.groups.rank, f"bucket {job.number}, exchange over the {kind} group", exc) from exc
        job.flight.append((work, kind, job.buffer))
        self.counters.bytes_out[kind] += (members - 1) * job.buffer.nbytes
        self.counters.exchanges += 1
        job.buffer = out


def lost(rank: int, what: str, exc: BaseException) -> UnavailableError:
    """A collective failed: most often because another rank died."""
    return UnavailableError(
        f"muon: rank {rank}: {what} failed: {exc}. Another rank died or cannot be reached; some parameters may have "
        "been stepped already, so restart from the last checkpoint"
    )


class WholeExchange(Exchange):
    """Whole parameters on every rank: owners' slots are gathered by all."""

    def __init__(
        self, matrices: Sequence[Matrix], groups: Groups, counters: Counters, device: torch.device, strategy: str
    ) -> None:
        """As `Exchange`, and the strategy: node, world or replicated."""
        super().__init__(matrices, groups, counters, device)
        self._levels: list[tuple[dist.ProcessGroup, str]] = []
        topology, rank = groups.topology, groups.rank
        if strategy == "node":
            self.positions, self.position = groups.local_size, groups.local
            self._levels = [(groups.node, "node")] if groups.node is not None else []
        elif strategy == "world" and groups.cross is not None:
            # After the first gather a rank holds its position's slots of all nodes; position = local * nodes + node.
            self.positions = topology.world_size
            self.position = groups.local * len(topology.nodes) + groups.cross_ranks.index(rank)
            self._levels = [(groups.cross, "cross")]
            if groups.node is not None:
                self._levels.append((groups.node, "node"))
        elif strategy == "world" and groups.world is not None:
            self.positions, self.position = topology.world_size, topology.ranks.index(rank)
            kind = "world" if len(topology.nodes) > 1 else "node"
            self._levels = [(groups.world, kind)]

    def rank_at(self, position: int) -> int:
        """Node: by position on the node. World: as `position` was made."""
        topology = self.groups.topology
        if self.positions == 1:
            return self.groups.rank
        if self._levels[0][1] == "cross":
            local, node = divmod(position, len(topology.nodes))
            return sorted(n[local] for n in topology.nodes)[node]
        if self.positions == topology.world_size:
            return topology.ranks[position]
        return topology.nodes[self.groups.node_index][position]

    def _stages(self) -> int:
        return len(self._levels)

    def _launch(self, job: Job) -> None:
        if job.stage < len(self._levels):
            group, kind = self._levels[job.stage]
            self._all_gather(job, group, kind)

    def result(self, job: Job, position: int, index: int) -> Tensor:
        """A view into the gathered buffer: owner and receivers add from the same layout, so they round alike."""
        if job.buffer is None:
            raise UnavailableError(f"muon: bucket {job.number} never arrived")
        m = self.matrices[index]
        at = position * job.slot + job.where[index]
        return job.buffer[at : at + m.numel].view(m.rows, m.cols)


class ShardExchange(Exchange):
    """Rows sharded inside the node: all-to-all to the owner, all-to-all back; between nodes one all-gather (world)."""

    def __init__(
        self, matrices: Sequence[Matrix], groups: Groups, counters: Counters, device: torch.device, strategy: str
    ) -> None:
        """As `Exchange`, and the strategy: node or world."""
        super().__init__(matrices, groups, counters, device)
        self._parts, self._part = groups.local_size, groups.local
        self._nodes = len(groups.topology.nodes) if strategy == "world" else 1
        self._node = groups.cross_ranks.index(groups.rank) if strategy == "world" and self._nodes > 1 else 0
        self.positions = self._parts * self._nodes
        self.position = self._part * self._nodes + self._node

    def _piece(self, index: int, part: int) -> int:
        start, stop = rows_of(self.matrices[index].rows, self._parts, part)
        return (stop - start) * self.matrices[index].cols

    def _all_to_all(self, job: Job, send: Tensor, counts_in: list[int], counts_out: list[int], what: str) -> Tensor:
        if self.groups.node is None:
            return send
        out = send.new_empty(sum(counts_in))
        try:
            work = dist.all_to_all_single(out, send, counts_in, counts_out, group=self.groups.node, async_op=True)
        except RuntimeError as exc:
            raise lost(self.groups.rank, f"bucket {job.number}, {what}", exc) from exc
        job.flight.append((work, "node", send))
        self.counters.bytes_out["node"] += 2 * (sum(counts_out) - counts_out[self._part])
        self.counters.exchanges += 1
        return out

    def prepare(self, job: Job, updates: dict[int, Tensor]) -> None:
        """Rows of each matrix that this node orthogonalises, to its owner."""
        wanted = [job.slots[part * self._nodes + self._node] for part in range(self._parts)]
        send = torch.empty(
            sum(self._piece(i, self._part) for slot in wanted for i in slot), dtype=torch.bfloat16, device=self.device
        )
        at = 0
        for slot in wanted:
            for i in slot:
                size = self._piece(i, self._part)
                send[at : at + size].copy_(updates[i].reshape(-1))
                at += size
        mine, at = job.slots[self.position], 0
        for part in range(self._parts):
            for i in mine:
                job.arrived[part, i] = at
                at += self._piece(i, part)
        job.inputs = self._all_to_all(
            job,
            send,
            [sum(self._piece(i, part) for i in mine) for part in range(self._parts)],
            [sum(self._piece(i, self._part) for i in slot) for slot in wanted],
            "rows to their owner",
        )

    def source(self, job: Job, index: int, out: Tensor) -> bool:
        """Put the rows that arrived in order."""
        if job.flight:
            self._settle(job)
        if job.inputs is None:
            raise UnavailableError(f"muon: bucket {job.number} got no rows")
        for part in range(self._parts):
            start, stop = rows_of(self.matrices[index].rows, self._parts, part)
            if start < stop:
                at = job.arrived[part, index]
                out[start:stop].copy_(job.inputs[at : at + self._piece(index, part)].view(stop - start, -1))
        return True

    def start(self, job: Job, send: Tensor) -> None:
        """Between the nodes first, if the world shares the work."""
        if job.flight:  # a rank that owns nothing in this bucket has not waited for its own rows yet
            self._settle(job)
        job.inputs = None
        super().start(job, send)

    def _stages(self) -> int:
        return 1 + (self._nodes > 1)

    def _launch(self, job: Job) -> None:
        if self._nodes > 1 and job.stage == 0 and self.groups.cross is not None:
            self._all_gather(job, self.groups.cross, "cross")
        elif job.stage == self._stages() - 1:
            self._scatter(job)

    def _scatter(self, job: Job) -> None:
        """The slots held here, as rows, to the ranks of the node."""
        if job.buffer is None:
            raise UnavailableError(f"muon: bucket {job.number} never arrived")
        held = [
            (i, n * job.slot + job.where[i])
            for n in range(self._nodes)
            for i in job.slots[self._part * self._nodes + n]
        ]
        counts_out = [sum(self._piece(i, part) for i, _ in held) for part in range(self._parts)]
        send = job.buffer.new_empty(sum(counts_out))
        at = 0
        for part in range(self._parts):
            for i, begin in held:
                start, _ = rows_of(self.matrices[i].rows, self._parts, part)
                size, skip = self._piece(i, part), start * self.matrices[i].cols
                send[at : at + size].copy_(job.buffer[begin + skip : begin + skip + size])
                at += size
        counts_in, at = [], 0
        for part in range(self._parts):
            begin = at
            for n in range(self._nodes):
                for i in job.slots[part * self._nodes + n]:
                    job.returned[i] = at
                    at += self._piece(i, self._part)
            counts_in.append(at - begin)
        job.packed = self._all_to_all(job, send, counts_in, counts_out, "rows of the update back")

    def result(self, job: Job, position: int, index: int) -> Tensor:
        """This rank's rows."""
        if job.packed is None:
            raise UnavailableError(f"muon: bucket {job.number} never arrived")
        at, size = job.returned[index], self._piece(index, self._part)
        return job.packed[at : at + size].view(-1, self.matrices[index].cols)


def make_exchange(
    matrices: Sequence[Matrix],
    groups: Groups,
    counters: Counters,
    device: torch.device,
    *,
    strategy: str,
    sharded: bool,
) -> Exchange:
    """The exchange for a layout and a decided strategy."""
    kind = ShardExchange if sharded else WholeExchange
    return kind(matrices, groups, counters, device, strategy)
