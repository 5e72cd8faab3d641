"""Did it learn, and from the pictures? The held-out error against predicting the mean, and with the frames blanked."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

from kinemill.training.job.source import Batch, Statistics

__all__ = ["Evaluation", "evaluate"]

GREY = 127
"""Blanked frames show an even mid-grey."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Root mean square errors over all valid steps and columns, in spreads of the training actions."""

    samples: int
    error: float
    mean_error: float
    """Of always predicting the training episodes' mean action."""
    blank_error: float
    """Of the same policy with grey frames."""

    @property
    def against_mean(self) -> float:
        """`error / mean_error`; below 1 is better than knowing nothing."""
        return self.error / self.mean_error if self.mean_error > 0 else float("inf")

    @property
    def blank_against_seeing(self) -> float:
        """`blank_error / error`; above 1 means that the frames are used."""
        return self.blank_error / self.error if self.error > 0 else float("inf")


@torch.no_grad()
def evaluate(policy: nn.Module, statistics: Statistics, batches: Iterable[Batch]) -> Evaluation:
    """Judge `policy` on this rank's batches and sum over all ranks (collective where torch.distributed is up)."""
    was_training = policy.training
    policy.eval()
    sums = torch.zeros(5, dtype=torch.float64)
    for batch in batches:
        target = (batch.action - statistics.action_mean) / statistics.action_std
        state = (batch.state - statistics.state_mean) / statistics.state_std
        known = torch.ones(len(state), 1)
        seen = policy(batch.frames, state, known)
        blank = policy(torch.full_like(batch.frames, GREY), state, known)
        sums += torch.stack(
            [
                batch.valid.any(1).sum().double(),
                (batch.valid.sum() * target.shape[-1]).double(),
                _squared(seen - target, batch.valid),
                _squared(target, batch.valid),
                _squared(blank - target, batch.valid),
            ]
        )
    policy.train(was_training)
    if dist.is_initialized():
        dist.all_reduce(sums)
    samples, values, error, mean_error, blank_error = sums.tolist()
    if values == 0:
        return Evaluation(0, float("inf"), float("inf"), float("inf"))
    return Evaluation(
        int(samples), (error / values) ** 0.5, (mean_error / values) ** 0.5, (blank_error / values) ** 0.5
    )


def _squared(difference: Tensor, valid: Tensor) -> Tensor:
    return (difference.double().square() * valid.unsqueeze(-1)).sum()
