"""Makes the three drops below one folder, the same bytes of meaning for the same seed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["BrokenEpisode", "Drop", "generate_drops"]


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


def generate_drops(
    root: Path,
    seed: int = 0,
    *,
    episodes: int = 4,
    seconds: float = 12.0,
    width: int = 160,
    height: int = 120,
    only: tuple[str, ...] = (),
) -> list[Drop]:
    """Write the drops of three vendors below `root`.

    Args:
        root: A folder; each vendor gets its own folder in it, which must not exist yet.
        seed: Decides every motion, texture and noise.
        episodes: Good episodes per vendor; one broken one comes on top.
        seconds: Length of each episode.
        width: Of both cameras, pixels, even.
        height: Of both cameras, pixels, even.
        only: Names of vendors to make; all where empty.

    Returns:
        One `Drop` per vendor, in a fixed order.
    """
    from kinemill.pipelines.drops import aloha, lerobot, ros2

    makers: dict[str, Callable[..., Drop]] = {
        ros2.VENDOR: ros2.write_drop,
        aloha.VENDOR: aloha.write_drop,
        lerobot.VENDOR: lerobot.write_drop,
    }
    return [
        make(root / vendor, seed, episodes=episodes, seconds=seconds, width=width, height=height)
        for vendor, make in makers.items()
        if not only or vendor in only
    ]
