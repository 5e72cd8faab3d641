"""systemd units and a tmpfiles.d file, installed as they are; see `units_dir`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["units_dir"]


def units_dir() -> Path:
    """The installed folder of the units."""
    return Path(__file__).parent
