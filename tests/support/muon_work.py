"""What the optimizer's test workers run; importable by name, so that a worker can be sent it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from kinemill.training import Muon
from kinemill.training.muon.topology import Topology

SHAPES: tuple[tuple[int, int], ...] = (
    *((1, 7), (512, 8), (64, 64), (64, 64), (64, 64), (96, 200), (200, 96)),
    *((128, 64), (128, 64), (32, 96), (48, 48), (48, 48), (7, 1)),
)
"""13 matrices of 9 shapes: square, tall, wide, degenerate."""
STEPS = 4


def make_params(shapes: tuple[tuple[int, ...], ...] = SHAPES, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """The same parameters everywhere."""
    seed = torch.Generator().manual_seed(11)
    return [nn.Parameter(torch.randn(s, generator=seed).to(dtype)) for s in shapes]


def gradient(step: int, index: int, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
    """The gradient that data parallelism would leave on every rank."""
    seed = torch.Generator().manual_seed(1000 * step + index)
    return torch.randn(shape, generator=seed).to(dtype)


def is_none(mode: str, step: int, index: int) -> bool:
    """Which gradients are missing, on all ranks alike."""
    if mode == "few":
        return (index + step) % 4 == 1 and index < 12
    if mode == "most":
        return index != (3 * step) % 13
    return False


def bits(tensors: Any) -> list[bytes]:
    """Exact contents of tensors."""
    found = []
    for t in tensors:
        whole = t.full_tensor() if isinstance(t, DTensor) else t
        found.append(whole.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found


def shard(params: list[nn.Parameter], topology: Topology) -> list[nn.Parameter]:
    """Rows sharded inside the node, replicas across: what FSDP2 makes of an HSDP mesh."""
    mesh = init_device_mesh("cpu", (len(topology.nodes), len(topology.nodes[0])), mesh_dim_names=("replica", "shard"))
    return [nn.Parameter(distribute_tensor(p.detach(), mesh, [Replicate(), Shard(0)])) for p in params]


def set_grads(params: list[nn.Parameter], step: int, mode: str = "all") -> None:
    """Give every parameter its gradient of this step."""
    for i, p in enumerate(params):
        if is_none(mode, step, i):
            p.grad = None
            continue
        grad = gradient(step, i, tuple(p.shape), p.dtype)
        p.grad = distribute_tensor(grad, p.device_mesh, p.placements) if isinstance(p, DTensor) else grad


def named(params: list[nn.Parameter]) -> list[tuple[str, nn.Parameter]]:
    """Names as a model would give them."""
    return [(f"block.{i}.weight", p) for i, p in enumerate(params)]


def _topology(nodes: tuple[tuple[int, ...], ...] | None) -> Topology | None:
    return None if nodes is None else Topology(nodes)


def train(
    rank: int,
    kwargs: dict[str, Any],
    *,
    nodes: tuple[tuple[int, ...], ...] | None = None,
    mode: str = "all",
    shapes: tuple[tuple[int, ...], ...] = SHAPES,
    dtype: torch.dtype = torch.float32,
    sharded: bool = False,
    steps: int = STEPS,
) -> dict[str, Any]:
    """Some steps; the parameters' bits and what the optimizer says about itself."""
    params = make_params(shapes, dtype)
    found = _topology(nodes)
    if sharded:
        params = shard(params, found or Topology(((0, 1), (2, 3))))
    optimizer = Muon(named(params), topology=found, check_every=1, **kwargs)
    for step in range(steps):
        set_grads(params, step, mode)
        optimizer.step()
    answer = {
        "bits": bits(params),
        "bytes": dict(optimizer.counters.bytes_out),
        "strategy": optimizer.decision.strategy,
        "decision": optimizer.decision.as_dict(),
        "nodes": optimizer.topology.nodes,
        "kept": sum("momentum_buffer" in optimizer.state[p] for p in params),
        "padding": optimizer.plan.padding,
        "digests": optimizer.counters.digests,
    }
    optimizer.close()
    return answer


def train_call(rank: int, kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """`train` with its options in one argument, as a pipe carries them."""
    return train(rank, kwargs, **options)
