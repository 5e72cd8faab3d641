"""What the optimizer's test workers run; importable by name, so that a worker can be sent it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from kinemill.training import Muon
from kinemill.training.muon.layout import local
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


# ---- checkpoints


def save(rank: int, folder: str, kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Train two steps, save, train two more; the bits at both points."""
    params, optimizer = _made(kwargs, options)
    for step in range(2):
        set_grads(params, step)
        optimizer.step()
    dcp_save({"optimizer": optimizer.sharded_state(), "model": _model(params)}, checkpoint_id=folder)
    middle = bits(params)
    for step in range(2, 4):
        set_grads(params, step)
        optimizer.step()
    answer = {"middle": middle, "end": bits(params), "kept": sum(bool(optimizer.state[p]) for p in params)}
    optimizer.close()
    return answer


def resume(rank: int, folder: str, kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """Load into fresh parameters and train the last two steps."""
    params, optimizer = _made(kwargs, options)
    with torch.no_grad():
        for p in params:
            p.zero_()
    what = {"optimizer": optimizer.sharded_state(), "model": _model(params)}
    dcp_load(what, checkpoint_id=folder)
    answer: dict[str, Any] = {"middle": bits(params), "reason": optimizer.decision.reason}
    answer["dtypes"] = sorted({str(s["momentum_buffer"].dtype) for s in optimizer.state.values() if s})
    for step in range(2, 4):
        set_grads(params, step)
        optimizer.step()
    answer["end"] = bits(params)
    answer["digests"] = optimizer.counters.digests
    optimizer.close()
    return answer


def _made(kwargs: dict[str, Any], options: dict[str, Any]) -> tuple[list[nn.Parameter], Muon]:
    topology = _topology(options.get("nodes"))
    params = make_params(options.get("shapes", SHAPES), options.get("dtype", torch.float32))
    if options.get("sharded"):
        params = shard(params, topology or Topology(((0, 1), (2, 3))))
    return params, Muon(named(params), topology=topology, **kwargs)


def _model(params: list[nn.Parameter]) -> dict[str, Tensor]:
    return {name: p.detach() for name, p in named(params)}


def complete_state(rank: int, kwargs: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """What `torch.save(optimizer.state_dict())` on any rank would hold."""
    params, optimizer = _made(kwargs, options)
    for step in range(2):
        set_grads(params, step)
        optimizer.step()
    found = optimizer.state_dict()
    answer = {
        "state": {n: bits([s["momentum_buffer"]])[0] for n, s in found["state"].items()},
        "digest": int(found["kinemill"]["digest"]),
    }
    optimizer.close()
    return answer


def round_trip(rank: int, first: dict[str, Any], second: dict[str, Any]) -> bool:
    """A complete state from one strategy into another, then two steps; equal to going on?"""
    a, one = _made(first, {})
    for step in range(2):
        set_grads(a, step)
        one.step()
    b, two = _made(second, {})
    with torch.no_grad():
        for x, y in zip(a, b, strict=True):
            y.copy_(x)
    two.load_state_dict(one.state_dict())
    for step in range(2, 4):
        for params, optimizer in ((a, one), (b, two)):
            set_grads(params, step)
            optimizer.step()
    equal = bits(a) == bits(b)
    one.close()
    two.close()
    return equal


# ---- what goes wrong


def order_differs(rank: int) -> None:
    """Rank 2 passes its parameters in another order."""
    pairs = named(make_params())
    Muon(pairs[::-1] if rank == 2 else pairs)


def settings_differ(rank: int) -> str:
    """Each rank is told another threshold; all follow the lowest rank's."""
    optimizer = Muon(named(make_params()), node_threshold=8 if rank == 0 else 0)
    answer = optimizer.decision.strategy
    optimizer.close()
    return answer


def grads_differ(rank: int, without: list[int]) -> list[bytes]:
    """Some ranks have no gradient for matrix 1."""
    params = make_params(((8, 8), (8, 8), (8, 8), (8, 8)))
    optimizer = Muon(named(params), strategy="node")
    set_grads(params, 0)
    if rank in without:
        params[1].grad = None
    optimizer.step()
    return bits(params)


def sparse_on_one(rank: int) -> None:
    """Rank 1 has a sparse gradient."""
    params = make_params(((8, 8), (8, 8)))
    optimizer = Muon(named(params), strategy="world")
    set_grads(params, 0)
    if rank == 1:
        params[0].grad = torch.ones(8, 8).to_sparse()
    optimizer.step()


def flip_a_bit(rank: int, on: int, sharded: bool) -> str:
    """One bit of one parameter changes on one rank; the next digest raises everywhere."""
    params = make_params()
    if sharded:
        params = shard(params, Topology(((0, 1), (2, 3))))
    optimizer = Muon(named(params), strategy="node", check_every=2)
    for step in range(2):
        set_grads(params, step)
        if step == 1 and rank == on:
            piece = local(params[3])
            piece.detach().view(-1)[:1].view(torch.int32).bitwise_xor_(1)
        optimizer.step()
    return "not noticed"


def drift_by_unreduced_gradients(rank: int) -> None:
    """Nodes step with gradients that were never reduced between them."""
    params = make_params(((8, 8), (8, 16)))
    optimizer = Muon(named(params), strategy="node", check_every=1)
    set_grads(params, rank // 2)
    optimizer.step()


def die_in_a_step(rank: int, dying: int, strategy: str) -> str:
    """One rank dies after the vote; the others must be told, not left waiting."""
    params = make_params()
    optimizer = Muon(named(params), strategy=strategy, bucket_mb=0.01)
    set_grads(params, 0)
    if rank == dying:
        optimizer.share.vote()
        os._exit(9)
    optimizer.step()
    return "stepped"


def step_again(rank: int) -> None:
    """A second optimizer shares the groups; closing one leaves the other working."""
    pairs = [named(make_params(((8, 8), (16, 8)))) for _ in range(2)]
    one, two = (Muon(p, strategy="world") for p in pairs)
    assert one.groups is two.groups
    one.close()
    set_grads([p for _, p in pairs[1]], 0)
    two.step()
    two.close()


def wrong_sharding(rank: int, how: str) -> None:
    """Layouts that are refused, each for its own reason."""
    matrix = torch.ones(8, 8)
    flat = init_device_mesh("cpu", (4,))
    square = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    whole = nn.Parameter(torch.ones(8, 8))
    if how == "over nodes":
        params = [nn.Parameter(distribute_tensor(matrix, flat, [Shard(0)]))]
    elif how == "columns":
        params = [nn.Parameter(distribute_tensor(matrix, square, [Replicate(), Shard(1)]))]
    elif how == "two dimensions":
        params = [nn.Parameter(distribute_tensor(matrix, square, [Shard(0), Shard(1)]))]
    elif how == "across":
        params = [nn.Parameter(distribute_tensor(matrix, square, [Shard(0), Replicate()]))]
    else:
        params = [nn.Parameter(distribute_tensor(matrix, square, [Replicate(), Shard(0)]))]
        if how == "mixed":
            params.append(whole)
    Muon(named(params), strategy="replicated" if how == "replicated" else "node")


def fsdp(rank: int, strategy: str) -> bool:
    """A model under FSDP2 on an HSDP mesh against the same model in one process with torch's optimizers."""
    from torch.distributed.fsdp import fully_shard

    from kinemill.training import split_params

    def build() -> nn.Sequential:
        torch.manual_seed(3)
        return nn.Sequential(nn.Linear(24, 40), nn.Tanh(), nn.Linear(40, 18), nn.LayerNorm(18), nn.Linear(18, 5))

    alone, ours = build(), build()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replica", "shard"))
    for layer in ours:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(ours, mesh=mesh)
    optimizer = Muon(split_params(ours, head="4", out=None), strategy=strategy, check_every=1)
    weights = dict(alone.named_parameters())
    muon: torch.optim.Optimizer = torch.optim.Muon([weights["0.weight"], weights["2.weight"]])
    adamw = torch.optim.AdamW([p for n, p in alone.named_parameters() if n not in ("0.weight", "2.weight")])
    for step in range(3):
        # The same batch on every rank: the mean over ranks is then the single process's gradient, to the last bit.
        x = torch.randn(16, 24, generator=torch.Generator().manual_seed(step))
        for model in (alone, ours):
            model(x).square().mean().backward()
        optimizer.step()
        muon.step()
        adamw.step()
        for one in (optimizer, muon, adamw):
            one.zero_grad()
    pairs = zip(alone.parameters(), ours.parameters(), strict=True)
    equal = all(torch.equal(a, b.full_tensor()) for a, b in pairs if isinstance(b, DTensor))
    optimizer.close()
    return equal


def ddp(rank: int, strategy: str) -> bool:
    """A model under DDP, with a layer that only some steps use."""
    from torch.nn.parallel import DistributedDataParallel

    from kinemill.training import split_params

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.out = nn.Linear(12, 20), nn.Linear(20, 20), nn.Linear(20, 3)

        def forward(self, x: Tensor, skip: bool) -> Tensor:
            h = self.a(x).tanh()
            y: Tensor = self.out(h if skip else self.b(h))
            return y

    torch.manual_seed(4)
    alone = Net()
    torch.manual_seed(4)
    wrapped = DistributedDataParallel(Net(), find_unused_parameters=True)
    optimizer = Muon(split_params(wrapped, head="out", out=None), strategy=strategy, check_every=1)
    muon: torch.optim.Optimizer = torch.optim.Muon([alone.a.weight, alone.b.weight])
    adamw = torch.optim.AdamW([p for n, p in alone.named_parameters() if n not in ("a.weight", "b.weight")])
    for step in range(3):
        x = torch.randn(8, 12, generator=torch.Generator().manual_seed(step))
        for model in (alone, wrapped):
            model(x, step == 1).square().mean().backward()
        optimizer.step()
        muon.step()
        adamw.step()
        for one in (optimizer, muon, adamw):
            one.zero_grad(set_to_none=True)
    equal = bits(alone.parameters()) == bits(wrapped.parameters())
    optimizer.close()
    return equal


def files_of(folder: str) -> int:
    """Bytes of a checkpoint's data files."""
    return sum(f.stat().st_size for f in Path(folder).glob("*.distcp"))


def broken_groups(rank: int) -> bool:
    """Whether the group is still usable, for tests that leave an optimizer open after an error."""
    token = torch.ones(1)
    dist.all_reduce(token)
    return bool(token.item() == dist.get_world_size())


def measured(rank: int) -> dict[str, Any]:
    """Measure small matrices on this fleet."""
    from kinemill.training.muon.measure import measure

    found = measure([(32, 64)] * 8, device=torch.device("cpu"), bucket_mb=0.01, repeats=1)
    return {
        "rows": [(r.nodes, r.node_s, r.world_s) for r in found.rows],
        "node_threshold": found.node_threshold,
        "fabric": found.rates.fabric,
        "topology": found.topology,
    }


def warmed(rank: int, nodes: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Ranks of every group that had a collective while the optimizer was made."""
    seen: list[tuple[int, ...]] = []
    original = dist.all_reduce

    def recording(tensor: Any, op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False) -> Any:
        seen.append(tuple(dist.get_process_group_ranks(group)))
        return original(tensor, op, group, async_op)

    dist.all_reduce = recording
    try:
        optimizer = Muon(named(make_params()), topology=Topology(nodes), strategy="world")
    finally:
        dist.all_reduce = original
    optimizer.close()
    return seen


def order_of_events(rank: int, strategy: str, sharded: bool) -> list[str]:
    """When buckets are computed, sent and waited for, in one step of equal buckets."""
    shapes = ((64, 64),) * 16
    params = make_params(shapes)
    if sharded:
        params = shard(params, Topology(((0, 1), (2, 3))))
    events: list[str] = []

    def backend(batch: Tensor, coefficients: Any, eps: float) -> Tensor:
        events.append("compute")
        return batch

    optimizer = Muon(named(params), strategy=strategy, bucket_mb=0.02, ns_backend=backend)
    start, finish = optimizer.share.exchange.start, optimizer.share.exchange.finish

    def starting(job: Any, send: Tensor) -> None:
        events.append(f"send {job.number}")
        start(job, send)

    def finishing(job: Any) -> None:
        finish(job)
        events.append(f"arrived {job.number}")

    optimizer.share.exchange.start = starting  # type: ignore[method-assign]  # a spy
    optimizer.share.exchange.finish = finishing  # type: ignore[method-assign]  # a spy
    set_grads(params, 0)
    optimizer.step()
    optimizer.close()
    return events
