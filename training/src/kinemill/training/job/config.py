"""The job's TOML file as frozen dataclasses; unknown keys and impossible values are refused before anything starts.

Secrets are not in it: the object store's credentials come from the environment.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from kinemill import records
from kinemill.contracts import ManifestMode
from kinemill.errors import ConfigError, ContractError, UnknownKeyError

__all__ = [
    "DataConfig",
    "FaultConfig",
    "JobConfig",
    "LaunchConfig",
    "OptimizerConfig",
    "PolicyConfig",
    "TrainConfig",
    "load_config",
]


@dataclass(frozen=True, slots=True)
class DataConfig:
    """What to learn from."""

    manifest: str
    """Id of the manifest that names the episodes to train on and to hold out."""
    store: str
    """URL of the object store that holds manifest and episodes, such as `s3://corpus`."""
    mode: str = "node_mmap"
    cameras: tuple[str, ...] = ("/cam/scene", "/cam/wrist")
    state: str = "/joint_states"
    action: str = "/action"
    width: int = 80
    height: int = 60
    """Frames are resized to this, pixels."""
    chunk_steps: int = 8
    """Actions to predict at once."""
    step_s: float = 0.05
    """Time between the actions of a chunk."""
    workers: int = 0
    """Reading processes per rank; 0 reads between the steps."""
    train_split: str = "train"
    held_out_split: str = "val"
    max_masked_share: float = 0.02
    """Samples that may be masked before the job stops."""


@dataclass(frozen=True, slots=True)
class PolicyConfig:
    """Size of the network."""

    channels: int = 16
    keypoints: int = 16
    hidden: int = 128
    state_dropout: float = 0.3
    """Share of training samples whose joint state is blanked, so that the frames are looked at."""


@dataclass(frozen=True, slots=True)
class OptimizerConfig:
    """One `Muon` with AdamW inside."""

    lr: float = 0.02
    """Of the matrices (Muon), at the start; cosine to a tenth."""
    adamw_lr: float = 0.003
    weight_decay: float = 0.01
    momentum: float = 0.95
    strategy: str = "auto"


@dataclass(frozen=True, slots=True)
class TrainConfig:
    """How long, how large, how often."""

    steps: int = 300
    batch: int = 32
    """Samples per rank and step."""
    seed: int = 0
    checkpoint_every: int = 50
    keep: int = 3
    log_every: int = 1
    held_out_samples: int = 256
    """Samples of the held-out episodes that the final evaluation uses, over all ranks."""


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Ranks of this node."""

    nproc: int = 2
    nnodes: int = 1
    rdzv_endpoint: str = ""
    max_restarts: int = 3
    hang_s: float = 600.0
    """A rank without a step for this long is ended, with its stacks written first; 0 never."""
    grace_s: float = 120.0
    stuck_after: int = 2
    """Attempts in a row without a new checkpoint after which the run gives up; 0 never."""


@dataclass(frozen=True, slots=True)
class FaultConfig:
    """A fault to inject, for tests and the demo: the run loses one rank to SIGKILL, once."""

    rank: int = -1
    """-1 is none."""
    step: int = 0


@dataclass(frozen=True, slots=True)
class JobConfig:
    """The whole file."""

    run: str
    """Run folder; relative paths are relative to the file."""
    data: DataConfig
    policy: PolicyConfig = field(default_factory=PolicyConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    launch: LaunchConfig = field(default_factory=LaunchConfig)
    fault: FaultConfig = field(default_factory=FaultConfig)

    def __post_init__(self) -> None:
        for name, value in (
            ("train.steps", self.train.steps),
            ("train.batch", self.train.batch),
            ("train.checkpoint_every", self.train.checkpoint_every),
            ("train.keep", self.train.keep),
            ("train.log_every", self.train.log_every),
            ("launch.nproc", self.launch.nproc),
            ("launch.nnodes", self.launch.nnodes),
            ("data.chunk_steps", self.data.chunk_steps),
            ("data.width", self.data.width),
            ("data.height", self.data.height),
            ("data.workers + 1", self.data.workers + 1),
        ):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be 1 or more")
        if self.data.mode not in ManifestMode:
            raise ValueError(f"data.mode '{self.data.mode}': one of {', '.join(ManifestMode)}")
        if not self.data.cameras:
            raise ValueError("data.cameras is empty; name at least one camera topic")
        if self.launch.nnodes > 1 and not self.launch.rdzv_endpoint:
            raise ValueError("launch.nnodes is more than 1: launch.rdzv_endpoint = 'host:port' is needed")


def load_config(path: Path) -> JobConfig:
    """Read and judge a job file.

    Raises:
        ConfigError: It cannot be read, is no TOML, or holds an unknown key or an impossible value.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: cannot be read ({exc.strerror})") from exc
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: not valid TOML ({exc})") from exc
    try:
        config = records.decode(JobConfig, data, where=str(path))
    except UnknownKeyError:
        raise
    except ContractError as exc:
        raise ConfigError(str(exc)) from exc
    if "://" not in config.run and not Path(config.run).is_absolute():
        data["run"] = str((path.parent / config.run).resolve())
        config = records.decode(JobConfig, data, where=str(path))
    return config
