"""What one attempt of a training run writes down about itself."""

from __future__ import annotations

import enum
from dataclasses import dataclass

__all__ = ["AttemptMeta", "AttemptOutcome"]


class AttemptOutcome(enum.StrEnum):
    """How an attempt ended; RUNNING also means that nobody could say."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    PREEMPTED = "preempted"
    NO_PROGRESS = "no_progress"


@dataclass(frozen=True, slots=True)
class AttemptMeta:
    """`attempts/NNNNNN/meta.json` of a run folder.

    The number is claimed by exclusive create and broadcast to all ranks: it is monotone over
    in-place restarts, requeues and resubmits, which the two counters beside it are not.
    """

    number: int
    job_id: str | None
    slurm_restart_count: int | None
    torchelastic_restart_count: int | None
    hosts: tuple[str, ...]
    world_size: int
    resume_step: int | None
    """The checkpoint it started from; None is a fresh start."""
    code_version: str
    started_at_ns: int
    ended_at_ns: int | None = None
    outcome: AttemptOutcome = AttemptOutcome.RUNNING
    last_step: int | None = None
    version: int = 1

    @property
    def folder(self) -> str:
        """`attempts/NNNNNN`."""
        return f"attempts/{self.number:06d}"
