"""The process groups of a topology: made on all ranks in one order, warmed, shared, and given back.

A group is made by *all* ranks of the job, also by those outside it, in the same order; and each is used
once at construction, because the first collective of a group connects its ranks, and ranks that connect
in different orders inside the first step wait for each other for ever.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from kinemill.errors import UnavailableError
from kinemill.training.muon.topology import Topology

__all__ = ["Groups", "close_groups", "open_groups"]


@dataclass(slots=True)
class Groups:
    """This rank's groups; None is a group of one, which needs no exchange."""

    topology: Topology
    rank: int
    world: dist.ProcessGroup | None = None
    node: dist.ProcessGroup | None = None
    cross: dist.ProcessGroup | None = None
    """The ranks with the same position on every node; only where all nodes have as many ranks."""
    owned: list[dist.ProcessGroup] = field(default_factory=list)
    root: dist.ProcessGroup | None = None
    users: int = 0

    @property
    def node_index(self) -> int:
        """Which node this rank is on."""
        return self.topology.node_of(self.rank)

    @property
    def local(self) -> int:
        """Position on the node."""
        return self.topology.local_of(self.rank)

    @property
    def local_size(self) -> int:
        """Ranks on this node."""
        return len(self.topology.nodes[self.node_index])

    @property
    def cross_ranks(self) -> list[int]:
        """Global ranks of `cross`, in its order."""
        return sorted(n[self.local] for n in self.topology.nodes)


_open: dict[tuple[tuple[int, ...], ...], Groups] = {}


def open_groups(topology: Topology, rank: int, device: torch.device) -> Groups:
    """The groups of `topology`; all ranks of the job call this together, also those outside it.

    Asking again for the same topology gives the same groups: several optimizers may share them.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return Groups(topology, rank)
    found = _open.get(topology.nodes)
    if found is not None and found.root is dist.group.WORLD:  # else they belong to a job that was torn down
        found.users += 1
        return found
    groups = Groups(topology, rank, root=dist.group.WORLD, users=1)
    whole = topology.ranks == tuple(range(dist.get_world_size()))

    def make(ranks: list[int]) -> dist.ProcessGroup | None:
        if len(ranks) == 1:
            return None
        if whole and len(ranks) == dist.get_world_size():
            return dist.group.WORLD
        group: dist.ProcessGroup = dist.new_group(ranks)
        if rank not in ranks:
            return None
        groups.owned.append(group)
        return group

    try:
        groups.world = make(list(topology.ranks))
        for node in topology.nodes:
            made = make(list(node))
            groups.node = made if rank in node else groups.node
        if topology.even and len(topology.nodes) > 1:
            for local in range(len(topology.nodes[0])):
                ranks = sorted(n[local] for n in topology.nodes)
                made = make(ranks)
                groups.cross = made if rank in ranks else groups.cross
        for group in dict.fromkeys(g for g in (groups.world, groups.node, groups.cross) if g is not None):
            token = torch.ones(1, dtype=torch.int32, device=device)
            dist.all_reduce(token, group=group)
            if int(token.item()) != dist.get_world_size(group):
                raise UnavailableError(f"muon: rank {rank}: warming a group of {dist.get_world_size(group)} went wrong")
    except RuntimeError as exc:
        raise UnavailableError(
            f"muon: rank {rank}: could not connect the groups of {topology.describe()}: {exc}"
        ) from exc
    _open[topology.nodes] = groups
    return groups


def close_groups(groups: Groups) -> None:
    """Give the groups back; the last user's call takes them down."""
    groups.users -= 1
    if groups.users > 0 or groups.root is None:
        return
    if _open.get(groups.topology.nodes) is groups:
        del _open[groups.topology.nodes]
    if dist.is_initialized() and groups.root is dist.group.WORLD:
        for group in groups.owned:
            dist.destroy_process_group(group)
    groups.owned.clear()
