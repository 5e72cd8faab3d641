"""What a made drop is: its episodes, what is broken in it, and where its chance comes from."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["BrokenEpisode", "Drop", "rng_for"]


@dataclass(frozen=True, slots=True)
class BrokenEpisode:
    """One episode that was spoilt on purpose."""

    key: str
    """What the quarantine record's source ends with."""
    code: str
    """The code that it must be quarantined with."""
    what: str
    """What was done to it, for a person."""


@dataclass(frozen=True, slots=True)
class Drop:
    """One delivery of one vendor, on disk."""

    vendor: str
    """Name of the vendor YAML that describes it."""
    path: Path
    episodes: int
    """Good ones."""
    broken: tuple[BrokenEpisode, ...]
    quirks: tuple[str, ...]
    """What a reader has to set right, for a person."""


def rng_for(seed: int, *what: object) -> np.random.Generator:
    """A generator of its own for each part, so that adding an episode moves no other."""
    digest = hashlib.sha256(repr((seed, *what)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big"))
