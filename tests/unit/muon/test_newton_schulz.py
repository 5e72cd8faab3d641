"""Orthogonalisation: singular values near one; one matrix or many, the same bits."""

from __future__ import annotations

import pytest
import torch

from kinemill.training.muon.coefficients import QUINTIC, polar_express
from kinemill.training.muon.newton_schulz import batch_limit, orthogonalize

CPU = torch.device("cpu")


def randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("rows", "cols"), [(1, 7), (7, 1), (64, 64), (40, 96), (96, 40), (512, 8)])
def test_a_batch_gives_the_bits_of_single_matrices(rows: int, cols: int) -> None:
    batch = randn(5, rows, cols)

    together = orthogonalize(batch.bfloat16(), [QUINTIC] * 5, 1e-7)
    single = [orthogonalize(m[None].bfloat16(), [QUINTIC] * 5, 1e-7)[0] for m in batch]

    assert torch.equal(together, torch.stack(single))


def test_polar_express_ends_closer_to_orthogonal_than_the_quintic() -> None:
    matrix = randn(1, 96, 128)

    def worst(coefficients: object) -> float:
        out = orthogonalize(matrix.bfloat16(), coefficients, 1e-7)[0].float()  # type: ignore[arg-type]  # both kinds
        return float((torch.linalg.svdvals(out) - 1).abs().max())

    assert worst(polar_express(8)) < 0.1 < worst([QUINTIC] * 8) < 0.6


def test_zeros_stay_zeros() -> None:
    assert not orthogonalize(torch.zeros(2, 4, 6, dtype=torch.bfloat16), [QUINTIC] * 5, 1e-7).any()


def test_batches_are_bounded_and_large_matrices_go_alone_on_a_cpu() -> None:
    assert batch_limit(4096, 4096, CPU) == 1
    assert batch_limit(64, 64, CPU) > 100
    assert batch_limit(4096, 4096, torch.device("cuda")) == 32
