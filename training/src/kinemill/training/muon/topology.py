"""Which ranks share a machine, found out by asking them: counting ranks per node is wrong where nodes differ."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, PrefixStore

from kinemill.errors import ConfigError, UnavailableError, UsageError

__all__ = ["Rendezvous", "Topology", "discover", "host_id"]


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes and their global ranks, as seen by every rank alike.

    Ranks ascend inside a node and nodes are ordered by their lowest rank.
    """

    nodes: tuple[tuple[int, ...], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        flat = [r for node in self.nodes for r in node]
        if not flat or not all(self.nodes) or len(set(flat)) != len(flat):
            raise UsageError(f"topology {self.nodes}: every node needs ranks and every rank one node")
        if any(list(n) != sorted(n) for n in self.nodes) or [n[0] for n in self.nodes] != sorted(
            n[0] for n in self.nodes
        ):
            raise UsageError(f"topology {self.nodes}: ranks ascend inside a node, nodes by their lowest rank")

    @property
    def ranks(self) -> tuple[int, ...]:
        """All global ranks, ascending."""
        return tuple(sorted(r for node in self.nodes for r in node))

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return sum(len(n) for n in self.nodes)

    @property
    def even(self) -> bool:
        """Whether all nodes have as many ranks."""
        return len({len(n) for n in self.nodes}) == 1

    def node_of(self, rank: int) -> int:
        """Index of the node that `rank` runs on."""
        for i, node in enumerate(self.nodes):
            if rank in node:
                return i
        raise UsageError(f"rank {rank} is in none of the nodes {self.nodes}")

    def local_of(self, rank: int) -> int:
        """Position of `rank` on its node."""
        return self.nodes[self.node_of(rank)].index(rank)

    def first(self, nodes: int) -> Topology:
        """The first `nodes` nodes only."""
        return Topology(self.nodes[:nodes], self.names[:nodes])

    def describe(self) -> str:
        """`4 nodes of 8 ranks`, `2 nodes of 3+2 ranks`."""
        sizes = [len(n) for n in self.nodes]
        text = str(sizes[0]) if self.even else "+".join(map(str, sizes))
        return f"{len(sizes)} node{'s' * (len(sizes) > 1)} of {text} rank{'s' * (sizes != [1])}"


def host_id() -> str:
    """Name and boot id of this machine; KINEMILL_NODE_ID replaces it, e.g. where containers split a machine."""
    if os.environ.get("KINEMILL_NODE_ID"):
        return os.environ["KINEMILL_NODE_ID"]
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        boot = "unknown"
    return f"{platform.node()}:{boot}"


class Rendezvous:
    """Text passed between the ranks of a job over its store: all to the lowest rank, its answer to all.

    Two requests a rank, so 8,000 ranks are no burden. The keys carry a number that the lowest rank
    drew and sent by a collective: a store that outlived a restart cannot answer for the dead attempt.
    """

    def __init__(self, ranks: Sequence[int], rank: int, group: dist.ProcessGroup | None, device: torch.device) -> None:
        """All of `ranks` call this together.

        Args:
            ranks: Global ranks that take part, ascending.
            rank: This one.
            group: A process group of exactly these ranks; None is the world.
            device: Where a collective's tensor must live.
        """
        self._ranks, self._rank, self._calls = list(ranks), rank, 0
        if len(self._ranks) == 1:
            self._store: Any = HashStore()
            return
        nonce = torch.randint(1 << 62, (1,), dtype=torch.int64, generator=_entropy()).to(device)
        dist.broadcast(nonce, src=self._ranks[0], group=group)
        shared = dist.distributed_c10d._get_default_store()  # torch has no public name for the job's store
        self._store = PrefixStore(f"kinemill/muon/{int(nonce.item())}", shared)

    @property
    def ranks(self) -> list[int]:
        """Who takes part, ascending."""
        return self._ranks

    @property
    def rank(self) -> int:
        """This one."""
        return self._rank

    @property
    def root(self) -> bool:
        """Whether this is the rank that answers."""
        return self._rank == self._ranks[0]

    def gather(self, text: str) -> list[str] | None:
        """Everyone's text in rank order, on the root; None elsewhere. Follow it by `answer`."""
        self._calls += 1
        self._store.set(f"{self._calls}/{self._rank}", text)
        if not self.root:
            return None
        try:
            values = self._store.multi_get([f"{self._calls}/{r}" for r in self._ranks])
        except RuntimeError as exc:
            raise UnavailableError(f"muon: not all of {len(self._ranks)} ranks came to the store: {exc}") from exc
        return [v.decode() for v in values]

    def answer(self, text: str | None = None) -> str:
        """What the root says; only the root passes text."""
        if self.root:
            if text is None:
                raise UsageError("the root of a rendezvous has to answer")
            self._store.set(f"{self._calls}/answer", text)
            return text
        try:
            return str(self._store.get(f"{self._calls}/answer"), "utf-8")
        except RuntimeError as exc:
            raise UnavailableError(f"muon: rank {self._ranks[0]} gave no answer over the store: {exc}") from exc


def _entropy() -> torch.Generator:
    """A generator of its own: the job's seed must neither repeat the number nor be moved by it."""
    generator = torch.Generator()
    generator.seed()
    return generator


def discover(rank: int, world_size: int, device: torch.device) -> Topology:
    """Ask every rank of the job which machine it is on.

    Raises:
        ConfigError: The ranks of a node do not fit what torchrun said (LOCAL_WORLD_SIZE).
    """
    if world_size == 1:
        return Topology(((rank,),), (host_id(),))
    meeting = Rendezvous(range(world_size), rank, None, device)
    hosts = meeting.gather(host_id())
    text = meeting.answer(None if hosts is None else json.dumps(_by_host(hosts)))
    names, nodes = zip(*json.loads(text), strict=True)
    found = Topology(tuple(tuple(n) for n in nodes), names)
    said = os.environ.get("LOCAL_WORLD_SIZE")
    mine = len(found.nodes[found.node_of(rank)])
    if said and said.isdigit() and int(said) > mine:
        raise ConfigError(
            f"rank {rank}: torchrun started {said} ranks here, but only {mine} report host '{host_id()}'. "
            "Is KINEMILL_NODE_ID set per rank? It has to be one per node."
        )
    return found


def _by_host(hosts: Sequence[str]) -> list[tuple[str, list[int]]]:
    found: dict[str, list[int]] = {}
    for rank, host in enumerate(hosts):
        found.setdefault(host, []).append(rank)
    return list(found.items())
