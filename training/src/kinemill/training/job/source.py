"""What the loop asks of its data, so that it can be run on other data: batches, their position, statistics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["Batch", "Source", "Statistics"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples of one rank and step, not yet normalised."""

    frames: Tensor
    """(B, cameras, H, W, 3) uint8."""
    state: Tensor
    """(B, state_dim) float32, in the state topic's units."""
    action: Tensor
    """(B, chunk_steps, action_dim) float32, in the action topic's units."""
    valid: Tensor
    """(B, chunk_steps) bool; False where the window reaches past the episode or the sample is masked."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Mean and spread of the training episodes, the same on every rank; they travel with the checkpoint."""

    state_mean: Tensor
    state_std: Tensor
    action_mean: Tensor
    action_std: Tensor

    def state_dict(self) -> dict[str, Tensor]:
        """By field name."""
        return {
            "state_mean": self.state_mean,
            "state_std": self.state_std,
            "action_mean": self.action_mean,
            "action_std": self.action_std,
        }

    @classmethod
    def of(cls, state: Tensor, action: Tensor) -> Statistics:
        """From rows: (n, state_dim) and (m, action_dim). A column that never moves gets spread 1."""

        def spread(rows: Tensor) -> Tensor:
            std = rows.to(torch.float64).std(0, correction=0)
            return torch.where(std > 1e-6, std, torch.ones_like(std)).float()

        return cls(state.double().mean(0).float(), spread(state), action.double().mean(0).float(), spread(action))


class Source(Protocol):
    """Batches of one rank, in an order that (seed, epoch, position) decides."""

    cameras: int

    def statistics(self) -> Statistics:
        """Of the training episodes."""
        ...

    def batches(self) -> Iterator[Batch]:
        """Training batches without end, from the position on."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch taken; the same on every rank, so that another world size can go on."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        ...

    def held_out(self, samples: int) -> Iterator[Batch]:
        """This rank's share of `samples` samples, spread evenly over the held-out episodes."""
        ...

    def counters(self) -> dict[str, float]:
        """What was read so far: samples, requests, bytes, masked."""
        ...

    def close(self) -> None:
        """Let go of workers and connections."""
        ...
