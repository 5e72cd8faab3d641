"""Slurm's administrator side through pyslurm, where a build for exactly this cluster's release is installed.

Optional: pyslurm is under the GPL, tied to one Slurm release a build, and imported only when `open_admin` is called.
The commands (`kinemill.slurm.cli`) are the default. Calls are bounded by Slurm's own MessageTimeout, not by us.
"""

from __future__ import annotations

import contextlib
import importlib
import pwd
from collections.abc import Iterator, Sequence
from typing import Any

from kinemill.contracts.slurm import JobInfo, NodeInfo, ReservationInfo, SlurmAdmin
from kinemill.errors import ExternalError, MissingToolError, NotFoundError, StateError, UnavailableError
from kinemill.slurm.cli import check_name, check_reason
from kinemill.slurm.hostlist import expand_hostlist
from kinemill.slurm.run import Answer, failure
from kinemill.slurm.text import parse_states

__all__ = ["PySlurm", "open_admin"]


def open_admin() -> SlurmAdmin:
    """Slurm for an administrator, through pyslurm.

    Raises:
        MissingToolError: It is not installed, or its build does not load against this Slurm.
    """
    try:
        module: Any = importlib.import_module("pyslurm")
    except ImportError as exc:
        raise MissingToolError(
            f"pyslurm is not usable here ({exc}); install the build for this cluster's release, or use the commands"
        ) from exc
    return PySlurm(module)


class PySlurm:
    """pyslurm as `SlurmAdmin`.

    Args:
        module: The imported pyslurm.
    """

    def __init__(self, module: Any) -> None:
        self._p = module

    @contextlib.contextmanager
    def _asking(self, what: str) -> Iterator[None]:
        """pyslurm's errors as ours."""
        try:
            yield
        except self._p.PyslurmError as exc:
            raise failure((what,), Answer(1, "", str(exc))) from exc

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """The named nodes in that order, or all.

        Raises:
            NotFoundError: A name that this cluster does not have.
        """
        for name in names:
            check_name(name)
        with self._asking("load nodes"):
            found = {str(node.name): _node(node) for node in self._p.Nodes.load().values()}
        if not names:
            return list(found.values())
        for name in names:
            if name not in found:
                raise NotFoundError(f"node '{name}' is not in this cluster; see: sinfo -N")
        return [found[name] for name in names]

    def jobs(self) -> list[JobInfo]:
        """All jobs that slurmctld still holds."""
        with self._asking("load jobs"):
            return [_job(job) for job in self._p.Jobs.load().values()]

    def reservations(self) -> list[ReservationInfo]:
        """All reservations."""
        with self._asking("load reservations"):
            return [_reservation(one) for one in self._p.Reservations.load().values()]

    def drain(self, node: str, reason: str) -> None:
        """Drain one node. Overwrites a reason that stands there: check first."""
        check_name(node)
        check_reason(reason)
        self._modify(node, state="DRAIN", reason=reason)

    def resume(self, node: str) -> None:
        """Resume one node.

        Raises:
            StateError: It is neither drained nor down, or is not valid.
        """
        check_name(node)
        (now,) = self.nodes([node])
        if not now.states & {"DRAIN", "DOWN"}:
            raise StateError(f"node '{node}' is {'+'.join(sorted(now.states))}: only a drained or down node is resumed")
        self._modify(node, state="RESUME")

    def set_extra(self, node: str, text: str) -> None:
        """Write the node's `Extra`."""
        check_name(node)
        check_reason(text)
        self._modify(node, extra=text)

    def delete_reservation(self, name: str) -> None:
        """Delete one reservation."""
        with self._asking("load reservations"):
            found = self._p.Reservations.load()
        if name not in found:
            raise NotFoundError(f"reservation '{name[:60]}' is not there")
        with self._asking("delete reservation"):
            found[name].delete()

    def _modify(self, node: str, **changes: str) -> None:
        self.nodes([node])  # pyslurm answers for another node where this one does not exist
        with self._asking("update node"):
            self._p.Node(node).modify(self._p.Node(**changes))


def _word(value: Any) -> str:
    return "" if value is None else str(value)


def _seconds(value: Any) -> int | None:
    if value is None or value == 0:
        return None
    if not isinstance(value, int):
        raise ExternalError(f"pyslurm gave {str(value)[:40]!r} where a time belongs")
    return value


def _pairs(value: Any) -> str:
    return ",".join(f"{key}:{count}" for key, count in value.items()) if isinstance(value, dict) else _word(value)


def _node(node: Any) -> NodeInfo:
    reason, user = _word(node.reason), _word(node.reason_user)
    states = node.state
    if not states:
        raise UnavailableError(f"pyslurm knows no state of node '{node.name}'; ask again")
    uid: int | None = None
    with contextlib.suppress(KeyError):
        uid = pwd.getpwnam(user).pw_uid if user and reason else None
    return NodeInfo(
        name=str(node.name),
        states=parse_states(str(states).upper()) if isinstance(states, str) else frozenset(s.upper() for s in states),
        reason=reason,
        reason_time_s=_seconds(node.reason_time) if reason else None,
        reason_user=user or None if reason else None,
        reason_uid=uid,
        boot_time_s=_seconds(node.boot_time),
        version=_word(node.slurm_version),
        extra=_word(node.extra),
        comment=_word(node.comment),
        gres=_pairs(node.configured_gres),
        gres_used=_pairs(node.allocated_gres),
        alloc_tres=_pairs(node.allocated_tres),
        partitions=tuple(_listed(node.partitions)),
        cpus=node.total_cpus,
        real_memory_mb=node.real_memory,
    )


def _listed(value: Any) -> list[str]:
    if not value:
        return []
    return [v for v in value.split(",") if v] if isinstance(value, str) else [str(v) for v in value]


def _job(job: Any) -> JobInfo:
    state = str(job.state).upper()
    over = state not in ("PENDING", "RUNNING", "SUSPENDED", "COMPLETING")
    return JobInfo(
        job_id=int(job.id),
        state=state,
        name=_word(job.name),
        user=_word(job.user_name),
        account=_word(job.account),
        partition=_word(job.partition),
        qos=_word(job.qos),
        nodes=expand_hostlist(_word(getattr(job, "allocated_nodes", ""))),
        restarts=int(job.requeue_count or 0),
        reason="" if job.state_reason in (None, "None") else str(job.state_reason),
        comment=_word(job.comment),
        reservation=_word(job.reservation),
        exit_code=job.exit_code if over else None,
    )


def _reservation(one: Any) -> ReservationInfo:
    flags = one.flags or ()
    names = [getattr(flag, "name", None) or str(flag) for flag in flags]
    return ReservationInfo(
        name=str(one.name),
        nodes=expand_hostlist(_word(one.nodes)),
        start_s=int(one.start_time),
        end_s=int(one.end_time),
        flags=frozenset({"MAINTENANCE": "MAINT"}.get(n.upper(), n.upper()) for n in names),
        users=tuple(_listed(one.users)),
        accounts=tuple(_listed(one.accounts)),
    )
