"""A Slurm in memory for policy tests; it behaves as the table of the test bed's recordings says.

Resume of an idle node is refused, a drain overwrites any reason without a word, and a requeue
counts a restart: the properties that policies must survive.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kinemill.contracts.clock import Clock
from kinemill.contracts.slurm import JobInfo, JobRequest, NodeInfo, ReservationInfo
from kinemill.errors import NotFoundError, StateError

__all__ = ["FakeSlurm"]

_FINISHED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


class FakeSlurm:
    """`SlurmAdmin` and `SlurmJobs` in one; tests reach into `node_table`, `job_table` and `reservation_table`."""

    def __init__(self, clock: Clock, nodes: Sequence[str] = ("n1", "n2")) -> None:
        self._clock = clock
        self.node_table = {n: NodeInfo(n, frozenset({"IDLE"}), boot_time_s=clock.now_ns() // 10**9) for n in nodes}
        self.job_table: dict[int, JobInfo] = {}
        self.reservation_table: dict[str, ReservationInfo] = {}
        self.notes: dict[int, str] = {}
        self.calls: list[tuple[str, str]] = []
        self._next_job = 1

    def _node(self, name: str) -> NodeInfo:
        if name not in self.node_table:
            raise NotFoundError(f"node '{name}' is not in this cluster")
        return self.node_table[name]

    def _job(self, job_id: int) -> JobInfo:
        if job_id not in self.job_table:
            raise NotFoundError(f"job {job_id} is not known")
        return self.job_table[job_id]

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """The named nodes, or all."""
        self.calls.append(("nodes", ",".join(names)))
        return [self._node(n) for n in names] if names else list(self.node_table.values())

    def jobs(self) -> list[JobInfo]:
        """All jobs."""
        self.calls.append(("jobs", ""))
        return list(self.job_table.values())

    def reservations(self) -> list[ReservationInfo]:
        """All reservations."""
        self.calls.append(("reservations", ""))
        return list(self.reservation_table.values())

    def drain(self, node: str, reason: str) -> None:
        """Drain, silently overwriting whatever reason stands there, as Slurm does."""
        self.calls.append(("drain", node))
        old = self._node(node)
        self.node_table[node] = dataclasses.replace(
            old,
            states=old.states | {"DRAIN"},
            reason=reason,
            reason_time_s=self._clock.now_ns() // 10**9,
            reason_user="root",
            reason_uid=0,
        )

    def resume(self, node: str) -> None:
        """Lift a drain or a down state and clear the reason."""
        self.calls.append(("resume", node))
        old = self._node(node)
        if not old.states & {"DRAIN", "DOWN"} or "INVAL" in old.states:
            raise StateError(f"node '{node}' is {'+'.join(sorted(old.states))}: only a drained or down node is resumed")
        states = old.states - {"DRAIN", "DOWN"}
        self.node_table[node] = dataclasses.replace(
            old,
            states=states or frozenset({"IDLE"}),
            reason="",
            reason_time_s=None,
            reason_user=None,
            reason_uid=None,
        )

    def set_extra(self, node: str, text: str) -> None:
        """Write `Extra`."""
        self.calls.append(("set_extra", node))
        self.node_table[node] = dataclasses.replace(self._node(node), extra=text)

    def delete_reservation(self, name: str) -> None:
        """Delete one reservation."""
        self.calls.append(("delete_reservation", name))
        if self.reservation_table.pop(name, None) is None:
            raise NotFoundError(f"reservation '{name}' is not there")

    def submit(self, request: JobRequest) -> int:
        """Queue a job; tests move its state."""
        self.calls.append(("submit", request.name))
        job_id, self._next_job = self._next_job, self._next_job + 1
        self.job_table[job_id] = JobInfo(
            job_id,
            "PENDING",
            name=request.name,
            comment=request.comment,
            partition=request.partition,
            account=request.account,
            qos=request.qos,
        )
        return job_id

    def state(self, job_id: int) -> JobInfo:
        """The job."""
        self.calls.append(("state", str(job_id)))
        return self._job(job_id)

    def cancel(self, job_id: int) -> None:
        """Cancel; a finished job stays as it is."""
        self.calls.append(("cancel", str(job_id)))
        if self._job(job_id).state not in _FINISHED:
            self.job_table[job_id] = dataclasses.replace(self._job(job_id), state="CANCELLED")

    def requeue(self, job_id: int) -> None:
        """Back to PENDING, one restart more."""
        self.calls.append(("requeue", str(job_id)))
        old = self._job(job_id)
        if old.state == "PENDING":
            raise StateError(f"job {job_id} is pending: there is nothing to requeue")
        self.job_table[job_id] = dataclasses.replace(old, state="PENDING", restarts=old.restarts + 1, nodes=())

    def hold(self, job_id: int) -> None:
        """Keep from starting."""
        self.calls.append(("hold", str(job_id)))
        self.job_table[job_id] = dataclasses.replace(self._job(job_id), reason="JobHeldAdmin")

    def release(self, job_id: int) -> None:
        """Undo `hold`."""
        self.calls.append(("release", str(job_id)))
        self.job_table[job_id] = dataclasses.replace(self._job(job_id), reason="")

    def note(self, job_id: int, words: str) -> None:
        """Write the administrator's comment of a job."""
        self.calls.append(("note", str(job_id)))
        self.notes[self._job(job_id).job_id] = words
