"""Settings of the node agents, rendered by role `node_agents` into agents.toml.

What a node should be comes only from here (the inventory), never from what is detected.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["AgentsSettings", "CheckSettings", "Hardware", "parse"]


@dataclass(frozen=True, slots=True)
class Hardware:
    """The inventory's hardware facts of this node; None and empty mean "not stated, do not judge"."""

    sku: str = ""
    """Name of a SKU file of limits, such as `h200-8`; empty judges only what is stated here."""
    gpus: int | None = None
    gpu_uuids: tuple[str, ...] = ()
    cpus: int | None = None
    memory_mb: int | None = None
    mounts: tuple[str, ...] = ()
    """Mount points that jobs need."""
    scratch_dirs: tuple[str, ...] = ("/tmp", "/var")  # noqa: S108 the node's own folders, only measured
    ethernet: tuple[str, ...] = ()
    """Interfaces that must be up."""
    infiniband_ports: int | None = None
    nvme_devices: int | None = None
    mig: bool = False
    container_command: tuple[str, ...] = ()
    """What proves that the container runtime runs something; empty: none is expected."""
    slurm_conf: str = ""
    """Path whose sha256 must be `slurm_conf_sha256`."""
    slurm_conf_sha256: str = ""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Which checks run, and what a site knows better."""

    disabled: tuple[str, ...] = ()
    """Names of checks that are off on this node; always reported as off, never silent."""
    xid_actions: dict[str, str] | None = None
    """XID number -> none, watch, reset, reboot, isolate or app; replaces a row of the shipped table."""
    min_free_percent: float = 5.0
    min_free_inodes_percent: float = 5.0


@dataclass(frozen=True, slots=True)
class AgentsSettings:
    """What a node agent is told about its node."""

    probe_root: Path = Path("/")
    """Where the checks look for /sys and /proc; another root is a test bed's stand-in. Disks and mounts are real."""
    kernel_log: Path = Path("/dev/kmsg")
    """Where kernel messages are read; another path is a test bed's stand-in."""
    state_dir: Path = Path("/var/lib/kinemill")
    run_dir: Path = Path("/run/kinemill")
    textfile_dir: Path | None = None
    """Where metrics files for the node exporter are written; None writes none."""
    node_name: str = ""
    """This node's name in Slurm; empty: the host name up to its first dot."""
    slurm_timeout_s: float = 10.0
    """For each of Slurm's commands."""
    hardware: Hardware = Hardware()
    checks: CheckSettings = CheckSettings()

    def __post_init__(self) -> None:
        if (self.hardware.slurm_conf == "") != (self.hardware.slurm_conf_sha256 == ""):
            raise ValueError("hardware.slurm_conf and hardware.slurm_conf_sha256 belong together")


def parse(text: str) -> AgentsSettings:
    """Settings from the text of an agents.toml, its SKU looked up.

    Raises:
        ConfigError: Not TOML, a key that nobody declared, a wrong type, or no such SKU.
    """
    import tomllib

    from kinemill.agents.skus import load_sku
    from kinemill.errors import ConfigError
    from kinemill.records import decode

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"agents.toml: not valid TOML ({exc})") from exc
    settings = decode(AgentsSettings, data, where="agents.toml")
    load_sku(settings.hardware.sku)
    return settings
