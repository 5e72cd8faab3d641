"""Newton-Schulz orthogonalisation of a batch of equal matrices in bfloat16.

For one matrix on the CPU the result is the same, bit for bit, as torch.optim.Muon's: the same
products in the same order on the same layouts. Only temporaries and call counts differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from kinemill.training.muon.coefficients import Triple

__all__ = ["Backend", "batch_limit", "orthogonalize"]

Backend: TypeAlias = Callable[[Tensor, Sequence[Triple], float], Tensor]
"""(batch (k, rows, cols) bf16 which it may overwrite, one triple an iteration, eps) -> batch of the same shape."""

_CPU_SMALL = 1 << 18
"""Up to this many elements a batched product beats single ones on a CPU (measured: 1.1x at 512^2, 0.8x at 1024^2)."""
_CPU_BATCH_BYTES = 8 << 20
_GPU_BATCH_BYTES = 1 << 30


def batch_limit(rows: int, cols: int, device: torch.device) -> int:
    """How many matrices of this shape to orthogonalise in one batch: by memory, and by speed on a CPU."""
    if device.type == "cpu":
        return max(1, _CPU_BATCH_BYTES // (2 * rows * cols)) if rows * cols <= _CPU_SMALL else 1
    return max(1, _GPU_BATCH_BYTES // (2 * rows * cols))


@torch.no_grad()
def orthogonalize(batch: Tensor, coefficients: Sequence[Triple], eps: float) -> Tensor:
    """Move every singular value of each matrix towards 1.

    Args:
        batch: (k, rows, cols), bfloat16; overwritten.
        coefficients: One triple (a, b, c) an iteration.
        eps: Lower bound of the norm that a matrix is divided by.

    Returns:
        (k, rows, cols); a transposed view where rows > cols.

    Source: https://kellerjordan.github.io/posts/muon/
    """
    norms = (
        torch.stack([m.norm() for m in batch.unbind(0)])  # a reduction over two of three dimensions rounds differently
        if batch.device.type == "cpu"
        else torch.linalg.vector_norm(batch, dim=(1, 2))
    )
    batch.div_(norms.clamp(min=eps)[:, None, None])
    tall = batch.size(1) > batch.size(2)
    x = batch.mT if tall else batch
    if batch.device.type == "cpu":
        x = x.contiguous()  # a batched bf16 product over a transposed view is 1000 times slower there
    x = _one(x[0], coefficients)[None] if x.size(0) == 1 else _many(x, coefficients)
    return x.mT if tall else x


def _one(x: Tensor, coefficients: Sequence[Triple]) -> Tensor:
    gram = x.new_empty(x.size(0), x.size(0))
    poly = torch.empty_like(gram)
    spare = torch.empty_like(x)
    for a, b, c in coefficients:
        torch.mm(x, x.T, out=gram)
        torch.addmm(gram, gram, gram, beta=b, alpha=c, out=poly)
        torch.addmm(x, poly, x, beta=a, out=spare)
        x, spare = spare, x
    return x


def _many(x: Tensor, coefficients: Sequence[Triple]) -> Tensor:
    gram = x.new_empty(x.size(0), x.size(1), x.size(1))
    poly = torch.empty_like(gram)
    spare = torch.empty_like(x)
    for a, b, c in coefficients:
        torch.bmm(x, x.mT, out=gram)
        torch.baddbmm(gram, gram, gram, beta=b, alpha=c, out=poly)
        torch.baddbmm(x, poly, x, beta=a, out=spare)
        x, spare = spare, x
    return x
