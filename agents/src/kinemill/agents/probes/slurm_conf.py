"""Hashes the Slurm configuration that this node uses."""

from __future__ import annotations

import hashlib
from pathlib import Path

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def read(ctx: Context, emit: Emit) -> None:
    """Emit `slurm_conf.sha256`, or None where the file cannot be read."""
    path = ctx.settings.hardware.slurm_conf
    if not path:
        return
    try:
        emit("slurm_conf.sha256", hashlib.sha256(Path(path).read_bytes()).hexdigest())
    except OSError:
        emit("slurm_conf.sha256", None)
