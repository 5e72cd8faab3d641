"""How a parameter lies over the ranks: whole on each, or in shards of rows inside the node (HSDP)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from kinemill.errors import UnsupportedError
from kinemill.training.muon.groups import Groups

__all__ = ["check_layout", "flat_start", "is_sharded", "local", "rows_of", "shape_of"]


def is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor of more than one piece."""
    return isinstance(tensor, DTensor) and any(
        not p.is_replicate() and tensor.device_mesh.size(i) > 1 for i, p in enumerate(tensor.placements)
    )


def local(tensor: Tensor) -> Tensor:
    """This rank's piece of a DTensor, sharing its memory; a plain tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def rows_of(rows: int, parts: int, part: int) -> tuple[int, int]:
    """[first row, end) of shard `part` of `parts`: pieces of ceil(rows / parts), the last ones shorter or empty."""
    size = -(-rows // parts)
    return min(part * size, rows), min((part + 1) * size, rows)


def shape_of(tensor: Tensor) -> tuple[int, int]:
    """(rows, columns) as a matrix; dimensions after the first are one."""
    rows = tensor.shape[0]
    cols = 1
    for size in tensor.shape[1:]:
        cols *= size
    return rows, cols


def flat_start(tensor: Tensor, groups: Groups) -> int:
    """Flat position in the whole tensor at which this rank's piece begins."""
    if not is_sharded(tensor):
        return 0
    rows, cols = shape_of(tensor) if tensor.ndim > 1 else (tensor.shape[0], 1)
    return rows_of(rows, groups.local_size, groups.local)[0] * cols


def check_layout(tensor: Tensor, name: str, groups: Groups) -> None:
    """Accept a plain tensor, or a DTensor in shards of rows over exactly the ranks of this node.

    Raises:
        UnsupportedError: Any other sharding, with its reason.
    """
    if not isinstance(tensor, DTensor):
        return
    mesh, where = (
        tensor.device_mesh,
        f"parameter {name}: {tensor.placements} on a mesh {tuple(tensor.device_mesh.shape)}",
    )
    sharded = [i for i, p in enumerate(tensor.placements) if not p.is_replicate()]
    for i in sharded:
        placement = tensor.placements[i]
        if placement.is_partial():
            raise UnsupportedError(f"{where} holds partial sums; reduce them before the optimizer sees them")
        if type(placement) is not Shard or placement.dim != 0:
            raise UnsupportedError(
                f"{where}: Muon needs whole rows on a rank, i.e. Shard(0). Tensor parallel and strided shardings cut "
                "the matrix in a way that would have to be gathered over other ranks first; give those to AdamW"
            )
    if len(sharded) > 1:
        raise UnsupportedError(f"{where} is sharded over {len(sharded)} mesh dimensions; only one is supported")
    if not sharded:
        if not all(isinstance(p, Replicate) for p in tensor.placements):
            raise UnsupportedError(f"{where}: neither replicated nor sharded")
        return
    if mesh.size(sharded[0]) == 1:
        return
    members = sorted(torch.distributed.get_process_group_ranks(mesh.get_group(sharded[0])))
    node = list(groups.topology.nodes[groups.node_index])
    if members != node:
        raise UnsupportedError(
            f"{where} is sharded over ranks {members}, this node's ranks are {node}. Use HSDP, a mesh of "
            "(replicate over nodes, shard inside the node): shards that cross nodes would put the optimizer's "
            "gathers on the fabric"
        )
    start, stop = rows_of(tensor.shape[0], len(node), groups.local)
    if tensor.to_local().shape[0] != stop - start:
        raise UnsupportedError(
            f"{where}: rank {groups.rank} holds {tensor.to_local().shape[0]} rows, not rows {start} to {stop} of "
            f"{tensor.shape[0]}; only equal consecutive pieces are supported"
        )
