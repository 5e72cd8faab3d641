"""Reads `scontrol --json` of Slurm 23.11 and later: numbers may be `{set, infinite, number}` or plain."""

from __future__ import annotations

import json
import math
import pwd
from collections.abc import Mapping
from typing import Any

from kinemill.contracts.slurm import JobInfo, NodeInfo, ReservationInfo
from kinemill.errors import ExternalError, UnavailableError
from kinemill.slurm.hostlist import expand_hostlist

__all__ = ["jobs", "nodes", "reservations"]


def _rows(text: str, key: str) -> list[Mapping[str, Any]]:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise ExternalError(f"Slurm's answer is not JSON ({exc}): '{text.strip()[:80]}'") from exc
    if isinstance(data, dict) and data.get("errors"):
        raise ExternalError(f"Slurm's JSON reports errors: {json.dumps(data['errors'])[:200]}")
    rows = data.get(key) if isinstance(data, dict) else None
    if not isinstance(rows, list) or not all(isinstance(r, dict) for r in rows):
        raise ExternalError(f"Slurm's JSON has no list '{key}'; a schema that is not known here")
    if not rows and not _number(data.get("last_update")):
        # 24.11 prints an empty list of jobs with exit status 0 when the controller is down.
        raise UnavailableError(f"the list of {key} was never updated: the controller did not answer")
    return rows


def _number(value: Any) -> int | None:
    """None where it is not set or has no end.

    Raises:
        ExternalError: No number in any of the known forms.
    """
    if isinstance(value, Mapping):
        if not value.get("set", True) or value.get("infinite"):
            return None
        value = value.get("number")
    if value is None or value == math.inf:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ExternalError(f"Slurm's JSON holds {str(value)[:40]!r} where a number belongs")
    return int(value)


def _time(value: Any) -> int | None:
    return _number(value) or None  # 0 is "never"


def _words(value: Any) -> list[str]:
    if isinstance(value, str):
        value = value.split("+")
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise ExternalError(f"Slurm's JSON holds {str(value)[:60]!r} where a list of words belongs")
    return [v.upper() for v in value if v]


def _text(row: Mapping[str, Any], key: str) -> str:
    value = row.get(key)
    if isinstance(value, list):
        return ",".join(str(v) for v in value)
    return "" if value is None else str(value)


def _uid(user: str) -> int | None:
    """Slurm's JSON names the user only; a name that this host does not know stays unknown."""
    if user.isdigit():
        return int(user)
    try:
        return pwd.getpwnam(user).pw_uid if user else None
    except KeyError:
        return None


def nodes(text: str) -> list[NodeInfo]:
    """Nodes of `scontrol --json show nodes`.

    Raises:
        ExternalError: Not JSON, or a schema that is not known here.
        UnavailableError: The controller did not answer, whatever the exit status says.
    """
    found: list[NodeInfo] = []
    for row in _rows(text, "nodes"):
        states = frozenset(_words(row.get("state")))
        name = _text(row, "name")
        if not states or not name:
            raise ExternalError("Slurm's JSON holds a node without a name or a state")
        reason_time = _time(row.get("reason_changed_at"))
        user = _text(row, "reason_set_by_user")
        reason = _text(row, "reason")
        alloc = _text(row, "tres_used")
        found.append(
            NodeInfo(
                name=name,
                states=states,
                reason=reason,
                reason_time_s=reason_time if reason else None,
                reason_user=user or None if reason else None,
                reason_uid=_uid(user) if reason else None,
                boot_time_s=_time(row.get("boot_time")),
                version=_text(row, "version"),
                extra=_text(row, "extra"),
                comment=_text(row, "comment"),
                gres=_text(row, "gres"),
                gres_used=_text(row, "gres_used"),
                alloc_tres=alloc,
                partitions=tuple(p for p in _text(row, "partitions").split(",") if p),
                cpus=_number(row.get("cpus")),
                real_memory_mb=_number(row.get("real_memory")),
            )
        )
    return found


def jobs(text: str) -> list[JobInfo]:
    """Jobs of `scontrol --json show jobs`.

    Raises:
        ExternalError: Not JSON, or a schema that is not known here.
        UnavailableError: The controller did not answer, whatever the exit status says.
    """
    found: list[JobInfo] = []
    for row in _rows(text, "jobs"):
        states = _words(row.get("job_state"))
        job_id = _number(row.get("job_id"))
        if not states or job_id is None:
            raise ExternalError("Slurm's JSON holds a job without an id or a state")
        reason = _text(row, "state_reason")
        code = row.get("exit_code")
        running = states[0] in ("PENDING", "RUNNING", "SUSPENDED") or "COMPLETING" in states
        found.append(
            JobInfo(
                job_id=job_id,
                state=states[0],
                name=_text(row, "name"),
                user=_text(row, "user_name"),
                account=_text(row, "account"),
                partition=_text(row, "partition"),
                qos=_text(row, "qos"),
                nodes=expand_hostlist(_text(row, "nodes")),
                restarts=_number(row.get("restart_cnt")) or 0,
                reason="" if reason in ("None", "none") else reason,
                comment=_text(row, "comment"),
                reservation=_text(row, "resv_name"),
                exit_code=None if running else _exit(code),
            )
        )
    return found


def _exit(code: Any) -> int | None:
    """An exit code; a signal is 128 and its number, as shells say it."""
    if not isinstance(code, Mapping):
        return _number(code)
    signal = code.get("signal")
    number = _number(signal.get("id")) if isinstance(signal, Mapping) else None
    return 128 + number if number else _number(code.get("return_code"))


def reservations(text: str) -> list[ReservationInfo]:
    """Reservations of `scontrol --json show reservations`.

    Raises:
        ExternalError: Not JSON, or a schema that is not known here.
        UnavailableError: The controller did not answer, whatever the exit status says.
    """
    found: list[ReservationInfo] = []
    for row in _rows(text, "reservations"):
        start, end = _number(row.get("start_time")), _number(row.get("end_time"))
        name = _text(row, "name")
        if not name or start is None or end is None:
            raise ExternalError("Slurm's JSON holds a reservation without a name, a start or an end")
        found.append(
            ReservationInfo(
                name,
                expand_hostlist(_text(row, "node_list")),
                start,
                end,
                frozenset(_words(row.get("flags") or [])),
                tuple(u for u in _text(row, "users").split(",") if u),
                tuple(a for a in _text(row, "accounts").split(",") if a),
            )
        )
    return found
