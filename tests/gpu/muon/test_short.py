"""One GPU, a few minutes: the parts of Muon that need no second one.

Several NCCL ranks need several GPUs (two processes on one GPU cannot form a group), so the exchanges over NCCL are
not covered here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.distributed as dist
from torch import nn

from kinemill.training import Muon
from kinemill.training.muon.coefficients import QUINTIC, polar_express
from kinemill.training.muon.newton_schulz import orthogonalize
from kinemill.training.muon.plan import ns_flops
from support.layers import skip

SHAPES = [(2048, 2048), (4096, 4096), (4096, 11008), (2048, 16384)]


@pytest.fixture(autouse=True)
def _gpu() -> None:
    if not torch.cuda.is_available():
        skip("no NVIDIA GPU that torch can use", run="make test on a machine with one and a CUDA build of torch")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", generator=torch.Generator("cuda").manual_seed(0)).bfloat16()


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_batches_repeat_to_the_bit_and_agree_with_single_matrices(rows: int, cols: int) -> None:
    batch = randn(2, rows, cols)

    first = orthogonalize(batch.clone(), [QUINTIC] * 5, 1e-7)
    again = orthogonalize(batch.clone(), [QUINTIC] * 5, 1e-7)
    single = torch.stack([orthogonalize(m[None].clone(), [QUINTIC] * 5, 1e-7)[0] for m in batch])

    assert torch.equal(first, again), "replicas of one GPU model would drift"
    assert torch.allclose(first.float(), single.float(), atol=2e-2)


@pytest.mark.parametrize(("rows", "cols"), SHAPES)
def test_singular_values_end_near_one(rows: int, cols: int) -> None:
    out = orthogonalize(randn(1, rows, cols), polar_express(8), 1e-7)[0].float()

    values = torch.linalg.svdvals(out)

    assert float((values - 1).abs().median()) < 0.05
    assert float(values.max()) < 1.3


def test_newton_schulz_reaches_a_fair_share_of_the_tensor_cores(
    record_property: Callable[[str, object], None],
) -> None:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    batch = randn(4, 4096, 4096)
    product = torch.empty_like(batch)

    def seconds(body: Callable[[], object]) -> float:
        for _ in range(3):
            body()
        begin.record()
        for _ in range(5):
            body()
        end.record()
        torch.cuda.synchronize()
        return begin.elapsed_time(end) / 5e3

    ours = 4 * ns_flops(4096, 4096) / seconds(lambda: orthogonalize(batch, [QUINTIC] * 5, 1e-7))
    matmul = 4 * 2 * 4096**3 / seconds(lambda: torch.bmm(batch, batch, out=product))

    record_property("ns_tflops", ours / 1e12)
    assert ours > 0.6 * matmul, f"{ours / 1e12:.0f} of {matmul / 1e12:.0f} TFLOP/s"


@pytest.fixture
def _one_rank_nccl() -> Iterator[None]:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("_one_rank_nccl")
def test_one_nccl_rank_steps_like_torch() -> None:
    def params() -> list[nn.Parameter]:
        seed = torch.Generator("cuda").manual_seed(1)
        return [
            nn.Parameter(torch.randn(s, device="cuda", generator=seed)) for s in [(256, 512), (512, 256), (128, 128)]
        ]

    a, b = params(), params()
    theirs, ours = torch.optim.Muon(a), Muon(b, check_every=1)
    for step in range(3):
        for x, y in zip(a, b, strict=True):
            x.grad = torch.randn(x.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(step))
            y.grad = x.grad.clone()
        theirs.step()
        ours.step()

    for x, y in zip(a, b, strict=True):
        assert torch.allclose(x, y, atol=1e-4)
    assert ours.counters.ns.seconds > 0
