"""Settings of the node agents, rendered by role `node_agents` into agents.toml."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AgentsSettings", "CheckSettings"]


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Which checks run."""

    disabled: tuple[str, ...] = ()
    """Names of checks that are off on this node; always reported as off, never silent."""


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """What a node agent is told about its node."""

    probe_root: Path = Path("/")
    """Where the checks look for /sys, /proc and /dev; another root is a test bed's stand-in."""
    kernel_log: Path = Path("/dev/kmsg")
    """Where kernel messages are read; another path is a test bed's stand-in."""
    checks: CheckSettings = CheckSettings()
