"""Slurm behind two Protocols: what an administrator does, and what a submitter does.

Backends: CLI with JSON where probing finds it, CLI text always, a fake, and pyslurm (agents).
Any call may raise `UnavailableError` or `DeadlineError` when the controller does not answer, and
`ExternalError` when it answers nonsense. Unknown is never turned into idle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

__all__ = ["JobInfo", "JobRequest", "NodeInfo", "ReservationInfo", "SlurmAdmin", "SlurmJobs"]


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """One node as slurmctld sees it."""

    name: str
    states: frozenset[str]
    """Base state and flags, upper case, such as {"IDLE", "DRAIN"}; never empty."""
    reason: str = ""
    reason_time_s: int | None = None
    reason_user: str | None = None
    reason_uid: int | None = None
    boot_time_s: int | None = None
    """None while the node has not registered."""
    version: str = ""
    extra: str = ""
    comment: str = ""
    gres: str = ""
    gres_used: str = ""
    alloc_tres: str = ""
    partitions: tuple[str, ...] = ()
    cpus: int | None = None
    real_memory_mb: int | None = None


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One job as slurmctld sees it."""

    job_id: int
    state: str
    """Upper case: PENDING, RUNNING, COMPLETED, ..."""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    reason: str = ""
    comment: str = ""
    reservation: str = ""
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ReservationInfo:
    """One reservation."""

    name: str
    nodes: tuple[str, ...]
    start_s: int
    end_s: int
    flags: frozenset[str] = frozenset()
    users: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What to submit."""

    script: Path
    name: str
    args: tuple[str, ...] = ()
    comment: str = ""
    """Carries the job key, so that a crashed submitter adopts instead of submitting twice."""
    nodes: int = 1
    cpus_per_task: int = 1
    mem_mb: int | None = None
    gres: str = ""
    time_limit_s: int | None = None
    partition: str = ""
    account: str = ""
    qos: str = ""
    requeue: bool = True
    output: Path | None = None
    environment: dict[str, str] = field(default_factory=dict)


@runtime_checkable
class SlurmAdmin(Protocol):
    """What fleet automation may do."""

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """The named nodes, or all, by one call."""
        ...

    def jobs(self) -> list[JobInfo]:
        """All jobs that slurmctld still holds."""
        ...

    def reservations(self) -> list[ReservationInfo]:
        """All reservations."""
        ...

    def drain(self, node: str, reason: str) -> None:
        """Drain one node. Overwrites a reason that stands there: check first."""
        ...

    def resume(self, node: str) -> None:
        """Resume one node.

        Raises:
            StateError: The node is neither drained nor down, or is not valid.
        """
        ...

    def set_extra(self, node: str, text: str) -> None:
        """Write the node's `Extra`, or `Comment` where the release has no Extra."""
        ...

    def delete_reservation(self, name: str) -> None:
        """Delete one reservation."""
        ...


@runtime_checkable
class SlurmJobs(Protocol):
    """What a submitter may do."""

    def submit(self, request: JobRequest) -> int:
        """The new job's id."""
        ...

    def state(self, job_id: int) -> JobInfo:
        """The job, from slurmctld or accounting.

        Raises:
            NotFoundError: Neither knows it.
        """
        ...

    def cancel(self, job_id: int) -> None:
        """Cancel; a finished job is no error."""
        ...

    def requeue(self, job_id: int) -> None:
        """Put a running job back into the queue."""
        ...

    def hold(self, job_id: int) -> None:
        """Keep a pending job from starting."""
        ...

    def release(self, job_id: int) -> None:
        """Undo `hold`."""
        ...
