"""Train-time transforms: plain callables on a topic's array, random by the sample's own seed.

A transform is called as `fn(array, rng)` with a window of one sample, (T, H, W, 3) uint8 or (T, D)
float32, and returns an array of one fixed shape. The same crop is used over a window, and the same
sample in the same epoch always gets the same one, whatever worker reads it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError

__all__ = ["Brightness", "Compose", "RandomCrop", "Torchvision", "Transform", "sample_rng"]

Array = npt.NDArray[Any]


class Transform(Protocol):
    """What `transforms={topic: ...}` takes. Must be picklable for spawned workers."""

    def __call__(self, array: Array, rng: np.random.Generator) -> Array:
        """The new window."""
        ...


def sample_rng(seed: int, epoch: int, sample: int, topic: str) -> np.random.Generator:
    """The generator of one topic of one sample of one epoch."""
    words = [seed & 0xFFFFFFFF, epoch & 0xFFFFFFFF, sample & 0xFFFFFFFF, sample >> 32, *topic.encode()]
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))


@dataclass(frozen=True, slots=True)
class RandomCrop:
    """The same random rectangle of every frame of the window; a view, made contiguous when it is batched."""

    height: int
    width: int

    def __call__(self, array: Array, rng: np.random.Generator) -> Array:
        """(T, H, W, C) to (T, height, width, C).

        Raises:
            UsageError: The frames are smaller.
        """
        high, wide = array.shape[1:3]
        if high < self.height or wide < self.width:
            raise UsageError(f"crop of {self.height}x{self.width} from frames of {high}x{wide}")
        top = int(rng.integers(0, high - self.height + 1))
        left = int(rng.integers(0, wide - self.width + 1))
        return array[:, top : top + self.height, left : left + self.width]


@dataclass(frozen=True, slots=True)
class Brightness:
    """Multiply by a factor in [1 - by, 1 + by], through a table of 256."""

    by: float = 0.2

    def __call__(self, array: Array, rng: np.random.Generator) -> Array:
        """uint8 to uint8, same shape."""
        factor = rng.uniform(1.0 - self.by, 1.0 + self.by)
        table = np.clip(np.arange(256) * factor, 0, 255).astype(np.uint8)
        out: Array = table[array]
        return out


@dataclass(frozen=True, slots=True)
class Compose:
    """One after another."""

    parts: tuple[Transform, ...]

    def __call__(self, array: Array, rng: np.random.Generator) -> Array:
        """Each on what the one before gave."""
        for part in self.parts:
            array = part(array, rng)
        return array


@dataclass(frozen=True, slots=True)
class Torchvision:
    """A `torchvision.transforms.v2` transform, or any callable on a uint8 (T, C, H, W) tensor."""

    fn: Callable[[Any], Any]

    def __call__(self, array: Array, rng: np.random.Generator) -> Array:
        """Seed torch's generator from `rng`, and keep the caller's state of it."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(rng.integers(0, 2**62)))
            out = self.fn(torch.from_numpy(np.ascontiguousarray(array)).permute(0, 3, 1, 2))
        found: Array = out.permute(0, 2, 3, 1).contiguous().numpy()
        return found
