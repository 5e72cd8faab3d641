"""Static shell shims for Slurm's hooks, installed as they are; see `hook_path`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["REFUSE", "hook_path"]

REFUSE = 100
"""The one exit code of the agent that a shim passes on as a refusal; a crash has another."""


def hook_path(name: str) -> Path:
    """The installed path of `prolog`, `epilog` or `healthcheck`."""
    return Path(__file__).parent / f"{name}.sh"
