"""Are replicas equal? Digests compared over the world, and a sentence that says who differs where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from kinemill.errors import CorruptError
from kinemill.training.muon.digest import tensor_digest
from kinemill.training.muon.exchange import lost
from kinemill.training.muon.groups import Groups
from kinemill.training.muon.layout import flat_start, is_sharded, local
from kinemill.training.muon.topology import Topology

__all__ = ["compare", "compare_sums", "describe"]


def compare(tensors: Mapping[str, Tensor], groups: Groups, what: str) -> int:
    """Compare tensors of which every rank holds a replica, whole or as rows inside its node. Collective.

    Sixteen bytes a rank are exchanged while all is well; what differs is looked for only after that.

    Returns:
        The digest of all of them.

    Raises:
        CorruptError: Replicas differ, on every rank alike.
        UnavailableError: A rank died.
    """
    if not tensors:
        return 0
    vector = torch.stack([tensor_digest(local(t), n, flat_start(t, groups)) for n, t in tensors.items()])
    if groups.world is None:
        return int(vector.sum().item())
    pieces = torch.tensor([is_sharded(t) for t in tensors.values()], device=vector.device)
    try:
        total = vector[~pieces].sum()
        if bool(pieces.any().item()):
            total = total + _whole(vector[pieces].sum(), groups)
        if _equal(total, groups.world):
            return int(total.item())
        if bool(pieces.any().item()):
            vector = torch.where(pieces, _whole(torch.where(pieces, vector, 0), groups), vector)
        rows = [torch.empty_like(vector) for _ in groups.topology.ranks]
        dist.all_gather(rows, vector, group=groups.world)
    except RuntimeError as exc:
        raise lost(groups.rank, "the digest of replicas", exc) from exc
    raise CorruptError(describe(torch.stack(rows).tolist(), list(tensors), groups.topology, what))


def compare_sums(tensors: Mapping[str, Tensor], groups: Groups, device: torch.device) -> None:
    """Compare what every *node* holds once, spread over its ranks (momentum under the node strategy). Collective.

    Raises:
        CorruptError: Nodes differ.
    """
    total = torch.zeros((), dtype=torch.int64, device=device)
    for name, tensor in tensors.items():
        total += tensor_digest(tensor, name)
    try:
        if groups.world is None or _equal(_whole(total, groups), groups.world):
            return
    except RuntimeError as exc:
        raise lost(groups.rank, "the digest of momentum", exc) from exc
    raise CorruptError(
        "muon: nodes hold different momentum; the checkpoint, or a node's read of it, is damaged. Load it again"
    )


def _whole(piece: Tensor, groups: Groups) -> Tensor:
    """Sum over the node: digests of parts add up to the digest of the whole."""
    piece = piece.clone()
    if groups.node is not None:
        dist.all_reduce(piece, group=groups.node)
    return piece


def _equal(total: Tensor, world: dist.ProcessGroup) -> bool:
    ends = torch.stack([total, ~total])  # ~x turns the order round, so that one MAX finds both ends
    dist.all_reduce(ends, op=dist.ReduceOp.MAX, group=world)
    return bool((ends[0] == ~ends[1]).item())


def describe(rows: Sequence[Sequence[int]], names: Sequence[str], topology: Topology, what: str) -> str:
    """Say which ranks hold other bits than most, and where.

    Args:
        rows: For each rank of the topology, ascending, the digests of all tensors.
        names: Of the tensors.
        topology: Nodes and ranks.
        what: Kind of tensor.
    """
    common = Counter(tuple(r) for r in rows).most_common(1)[0][0]
    odd = [rank for rank, row in zip(topology.ranks, rows, strict=True) if tuple(row) != common]
    bad = [names[i] for i in range(len(names)) if any(row[i] != common[i] for row in rows)]
    nodes = sorted({topology.node_of(r) for r in odd})
    where = ", ".join(f"{n} ({topology.names[n]})" if topology.names else str(n) for n in nodes)
    majority = "" if len(odd) * 2 < len(rows) else " (no majority: either half may be the wrong one)"
    more = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    return (
        f"muon: replicas drifted apart: {what} {bad[0]}{more} on ranks {odd} of node {where} differ from the other "
        f"{len(rows) - len(odd)} ranks{majority}. Restart from the last checkpoint and take the odd node out: same "
        "input, other bits is a hardware fault until shown otherwise"
    )
