"""Vendor drops made on the spot, for the demo and for tests: three genuine formats, each with its quirks.

Every file is written by the libraries that vendors use (`rosbags`, `h5py`, `pyarrow` with `av`), never by
kinemill's own writer, so reading them proves something. Each drop holds one broken episode, whose fate is
known beforehand: `Drop.broken` names the code that it must be quarantined with.
"""

from __future__ import annotations

from kinemill.pipelines.drops.drop import BrokenEpisode, Drop
from kinemill.pipelines.drops.generate import generate_drops

__all__ = ["BrokenEpisode", "Drop", "generate_drops"]
