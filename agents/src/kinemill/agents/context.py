"""What a run of checks knows before it looks: who asked, for which job, and what the node should be."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kinemill.agents.settings import AgentsSettings
from kinemill.agents.skus import Sku, load_sku
from kinemill.contracts.checks import CheckContext

__all__ = ["Context", "Job", "context_for", "job_from_environment", "read_boot_id"]


@dataclass(frozen=True, slots=True)
class Job:
    """The Slurm job that a hook runs for."""

    job_id: int
    user: str = ""
    uid: int | None = None
    gpus: tuple[int, ...] | None = None
    """Indices of SLURM_JOB_GPUS; None where the job has no list (then all GPUs count)."""
    restart_count: int = 0


@dataclass(frozen=True, slots=True)
class Context:
    """Handed to probes and checks."""

    context: CheckContext
    settings: AgentsSettings
    sku: Sku
    boot_id: str | None
    job: Job | None = None
    extra: dict[str, str] = field(default_factory=dict)

    def path(self, absolute: str) -> Path:
        """`absolute` below the probe root (another root than / is a test bed's stand-in)."""
        return self.settings.probe_root / absolute.lstrip("/")


def read_boot_id(root: Path = Path("/")) -> str | None:
    """The kernel's boot id: what "since boot" means. None where it cannot be read."""
    try:
        text = (root / "proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if re.fullmatch(r"[0-9a-f-]{36}", text) else None


def job_from_environment(environ: Mapping[str, str]) -> Job | None:
    """The job in a hook's environment; hostile or damaged values are treated as absent."""
    job_id = environ.get("SLURM_JOB_ID") or environ.get("SLURM_JOBID") or ""
    if not re.fullmatch(r"[0-9]{1,10}", job_id):
        return None
    gpus = environ.get("SLURM_JOB_GPUS")
    indices: tuple[int, ...] | None = None
    if gpus is not None and re.fullmatch(r"[0-9]{1,3}(,[0-9]{1,3})*", gpus):
        indices = tuple(int(g) for g in gpus.split(","))
    uid = environ.get("SLURM_JOB_UID", "")
    restarts = environ.get("SLURM_JOB_RESTART_COUNT", environ.get("SLURM_RESTART_COUNT", "0"))
    return Job(
        job_id=int(job_id),
        user=re.sub(r"[^A-Za-z0-9_.@-]", "?", environ.get("SLURM_JOB_USER", ""))[:64],
        uid=int(uid) if re.fullmatch(r"[0-9]{1,10}", uid) else None,
        gpus=indices,
        restart_count=int(restarts) if re.fullmatch(r"[0-9]{1,6}", restarts) else 0,
    )


def context_for(context: CheckContext, settings: AgentsSettings, environ: Mapping[str, str] | None = None) -> Context:
    """The context of one run: SKU from the settings, boot id from the probe root, job from `environ`."""
    return Context(
        context=context,
        settings=settings,
        sku=load_sku(settings.hardware.sku),
        boot_id=read_boot_id(settings.probe_root),
        job=job_from_environment(environ or {}),
    )
