"""Makes the three drops below one folder, the same bytes of meaning for the same seed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kinemill.pipelines.drops import aloha, lerobot, ros2
from kinemill.pipelines.drops.drop import Drop

__all__ = ["generate_drops"]


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
