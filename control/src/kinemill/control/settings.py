"""Settings of the control host: `/etc/kinemill/control.toml`."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["ControlSettings", "DeploySettings", "state_home"]


def state_home() -> Path:
    """`$XDG_STATE_HOME`, else `~/.local/state`; below it, `kinemill`."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "kinemill"


def _runs_dir() -> Path:
    return state_home() / "deploy"


@dataclass(frozen=True, slots=True)
class DeploySettings:
    """Settings of `kinemill deploy`."""

    runs_dir: Path = field(default_factory=_runs_dir, metadata={"env": "KINEMILL_DEPLOY_RUNS"})
    """Where each run keeps its report and output: `<inventory>/<time>/` below it."""
    lock_dir: Path = field(default=Path("/run/lock"), metadata={"env": "KINEMILL_DEPLOY_LOCKS"})
    """Where runs lock each other out. All operators of this machine must name the same folder."""
    keep_runs: int = 20
    """Runs kept for each inventory; older ones are removed."""
    reach_timeout_s: int = 60
    """How long all nodes together may take to answer before anything is touched; for each 50 nodes."""
    connect_timeout_s: int = 10
    """How long one ssh connection may take to open."""

    def __post_init__(self) -> None:
        for name in ("keep_runs", "reach_timeout_s", "connect_timeout_s"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more")


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """Settings of the control plane."""

    deploy: DeploySettings = field(default_factory=DeploySettings)
    """`kinemill deploy`."""
