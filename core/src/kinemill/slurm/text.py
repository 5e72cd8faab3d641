"""Reads what Slurm's commands print as text, on any release, so that nobody can forge a line.

A reason, a job's name or a comment is anybody's text and may hold pipes, newlines or `State=IDLE`.
So free text is asked for between marks drawn at random for each call: `@<32 hex digits>` cannot be
known to whoever wrote the text. Only fields that come before any free text are taken from
`scontrol`'s `Name=value` lines.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Sequence

from kinemill.contracts.slurm import JobInfo, NodeInfo, ReservationInfo
from kinemill.errors import ExternalError
from kinemill.slurm.hostlist import expand_hostlist

__all__ = [
    "JOB_FORMAT",
    "NODE_FORMAT",
    "SACCT_FIELDS",
    "marked",
    "parse_accounting",
    "parse_jobs",
    "parse_nodes",
    "parse_reservations",
    "parse_states",
    "parse_time",
    "split_marked",
]

NODE_FORMAT = ("%N", "%E", "%H", "%U")
"""sinfo: name, reason, its time, its user as `name(uid)`."""
JOB_FORMAT = ("%i", "%T", "%j", "%u", "%a", "%P", "%q", "%N", "%r", "%k", "%v")
"""squeue: id, state, name, user, account, partition, QOS, nodes, reason, comment, reservation."""
SACCT_FIELDS = (
    "JobIDRaw", "State", "JobName", "User", "Account", "Partition", "QOS", "NodeList", "ExitCode", "Comment",
    "Reservation",
)  # fmt: skip
_NOTHING = {"(null)", "N/A", "None", "n/a", "none", ""}
_STATE = re.compile(r"(?P<word>[A-Z][A-Z_]*)(?P<marks>[*~#!%$@^+-]*)")
_MARKS = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "!": "POWERING_DOWN",
    "%": "POWERING_DOWN",
    "$": "MAINT",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}
_COUNTS = re.compile(r"(?P<job>\S+)\s+(?P<restarts>\d{1,9})\s+(?P<code>\d{1,9})(?::(?P<signal>\d{1,3}))?")
_FIELD = re.compile(r"(?:^|\s)(?P<name>[A-Z][A-Za-z/:_]*)=(?P<value>\S*)")
_NODE_LINE = re.compile(r"^NodeName=(?P<name>\S+) (?P<rest>.*)$", re.MULTILINE)
_TAIL = re.compile(r" (?:Reason|Comment|Extra)=")
_EXTRA = re.compile(r" Extra=(?P<extra>.*?)(?= ReservationName=\S*\s*$|\s*$)")
_COMMENT = re.compile(r" Comment=(?P<comment>.*?)(?= Extra=| ReservationName=\S*\s*$|\s*$)")


def marked(fields: Sequence[str], mark: str) -> str:
    """The format for `sinfo -o` or `squeue -o`: each field after `MARK=`, and `MARK.` at the end."""
    return "".join(f"{mark}={field}" for field in fields) + f"{mark}."


def split_marked(text: str, fields: int, mark: str) -> list[list[str]]:
    """The records of an answer in `marked` format.

    Raises:
        ExternalError: Stray text, or another number of fields.
    """
    *records, rest = text.split(f"{mark}.")
    rows: list[list[str]] = []
    for record in records:
        stray, *values = record.split(f"{mark}=")
        if len(values) != fields or stray.strip():
            raise ExternalError(f"Slurm printed {len(values)} fields for {fields}, and '{stray.strip()[:60]}' beside")
        rows.append(values)
    if rest.strip():
        raise ExternalError(f"Slurm printed stray text: '{rest.strip()[:100]}'")
    return rows


def parse_time(text: str) -> int | None:
    """Seconds since the epoch of Slurm's zone-less UTC time; None for `Unknown` and its like.

    Raises:
        ExternalError: Not a time.
    """
    if text in ("Unknown", "None", "N/A", "NONE", ""):
        return None
    try:
        return calendar.timegm(time.strptime(text, "%Y-%m-%dT%H:%M:%S"))
    except ValueError as exc:
        raise ExternalError(f"'{text[:40]}' is not a time as Slurm prints it") from exc


def parse_states(text: str) -> frozenset[str]:
    """`IDLE+DRAIN`, `DOWN*+DRAIN` as words.

    Raises:
        ExternalError: Not such a state.
    """
    found: set[str] = set()
    for part in text.split("+"):
        match = _STATE.fullmatch(part)
        if match is None:
            raise ExternalError(f"'{text[:60]}' is not a node state")
        found.add(match["word"])
        found |= {_MARKS[m] for m in match["marks"] if m in _MARKS}
    return frozenset(found)


def parse_nodes(lines: str, marks: str, mark: str) -> list[NodeInfo]:
    """Nodes from `scontrol --oneliner show node`, with reasons from sinfo's marked answer.

    Args:
        lines: What scontrol printed.
        marks: What sinfo printed in `NODE_FORMAT`.
        mark: The mark of that call.

    Raises:
        ExternalError: The two disagree, which is how a forged or torn line shows.
    """
    reasons = {name: (why, at, who) for name, why, at, who in split_marked(marks, len(NODE_FORMAT), mark)}
    nodes: list[NodeInfo] = []
    for match in _NODE_LINE.finditer(lines):
        name = match["name"]
        if name not in reasons:
            raise ExternalError(f"scontrol shows a node '{name[:60]}' that sinfo does not know")
        nodes.append(_node(name, match["rest"], *reasons[name]))
    names = [n.name for n in nodes]
    if len(set(names)) != len(names):
        twice = sorted({n for n in names if names.count(n) > 1})
        raise ExternalError(f"scontrol shows node '{twice[0]}' twice; a text field forges lines: look at its reason")
    if not nodes and lines.strip() and "No nodes in the system" not in lines:
        raise ExternalError(f"scontrol printed no node but '{lines.strip()[:100]}'")
    return nodes


def _node(name: str, rest: str, why: str, at: str, who: str) -> NodeInfo:
    head = _TAIL.split(rest, maxsplit=1)[0]
    tail = rest[len(head) :]
    fields = _first_fields(head)
    if "State" not in fields:
        raise ExternalError(f"scontrol shows node '{name}' without a state")
    reason_time = parse_time(at)
    user, uid = _user(who)
    after = _after_reason(tail, why) if reason_time is not None else tail
    extra, comment = _EXTRA.search(after), _COMMENT.search(after)
    partitions = fields.get("Partitions", "")
    return NodeInfo(
        name=name,
        states=parse_states(fields["State"]),
        reason=why if reason_time is not None else "",
        reason_time_s=reason_time,
        reason_user=user if reason_time is not None else None,
        reason_uid=uid if reason_time is not None else None,
        boot_time_s=parse_time(fields.get("BootTime", "Unknown")),
        version=_value(fields, "Version"),
        extra=extra["extra"].strip() if extra else "",
        comment=comment["comment"].strip() if comment else "",
        gres=_value(fields, "Gres"),
        gres_used=_value(fields, "GresUsed"),
        alloc_tres=_value(fields, "AllocTRES"),
        partitions=tuple(p for p in partitions.split(",") if p and p not in _NOTHING),
        cpus=_number(fields.get("CPUTot")),
        real_memory_mb=_number(fields.get("RealMemory")),
    )


def _after_reason(tail: str, why: str) -> str:
    """What follows the reason and its `[user@time]`; lines of the reason are joined by scontrol."""
    flat = r"\s+".join(re.escape(word) for word in why.split())
    first = re.escape(why.split("\n", 1)[0].strip())
    pattern = rf" Reason={first}.*" if "\n" in why else rf" Reason=\s*{flat} \[\S+@[\dT:-]+\]"
    match = re.match(pattern, tail)
    return tail[match.end() :] if match else ""


def _user(text: str) -> tuple[str | None, int | None]:
    match = re.fullmatch(r"(?P<name>[^()\s]{1,64})\((?P<uid>\d{1,10})\)", text.strip())
    return (match["name"], int(match["uid"])) if match else (None, None)


def _first_fields(text: str) -> dict[str, str]:
    """`Name=value` words; the first of a name counts."""
    found: dict[str, str] = {}
    for match in _FIELD.finditer(text):
        found.setdefault(match["name"], match["value"])
    return found


def _value(fields: dict[str, str], name: str) -> str:
    value = fields.get(name, "")
    return "" if value in _NOTHING else value


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def parse_jobs(marks: str, numbers: str, mark: str) -> list[JobInfo]:
    """Jobs from squeue's marked answer and its columns of job, restarts and exit status.

    A job that ended between the two calls has no numbers: its restarts count as 0.

    Raises:
        ExternalError: Not what squeue prints.
    """
    counts: dict[str, tuple[int, int]] = {}
    for line in numbers.splitlines():
        match = _COUNTS.fullmatch(line.strip())
        if match is None:
            raise ExternalError(f"squeue printed '{line[:80]}' for job, restarts and exit status")
        counts[match["job"]] = (int(match["restarts"]), _exit(match["code"], match["signal"]))
    jobs: dict[int, JobInfo] = {}
    for row in split_marked(marks, len(JOB_FORMAT), mark):
        raw, state, name, user, account, partition, qos, nodes, reason, comment, reservation = row
        number = re.match(r"\d{1,10}", raw)
        if number is None:
            raise ExternalError(f"squeue printed the job id '{raw[:40]}'")
        restarts, status = counts.get(raw, counts.get(number[0], (0, 0)))
        job = JobInfo(
            job_id=int(number[0]),
            state=state.split(" ", 1)[0],
            name=name,
            user=user,
            account=_clean(account),
            partition=partition,
            qos=_clean(qos),
            nodes=expand_hostlist(nodes),
            restarts=restarts,
            reason=_clean(reason),
            comment=_clean(comment),
            reservation=_clean(reservation),
            exit_code=status if state not in ("PENDING", "RUNNING", "COMPLETING", "SUSPENDED") else None,
        )
        jobs.setdefault(job.job_id, job)
    return list(jobs.values())


def _clean(text: str) -> str:
    return "" if text in _NOTHING else text


def _exit(code: str, signal: str | None) -> int:
    """`code:signal`, or one wait status, as an exit code; a signal is 128 and its number, as shells say it."""
    if signal is not None:
        return 128 + int(signal) if int(signal) else int(code)
    status = int(code)
    return 128 + (status & 0x7F) if status & 0x7F else status >> 8


def parse_accounting(text: str, mark: str) -> list[JobInfo]:
    """Jobs from `sacct --parsable --delimiter=MARK`, one a run of the job, the oldest first.

    Raises:
        ExternalError: Not what sacct prints.
    """
    values = text.split(mark)
    if values.pop().strip():
        raise ExternalError(f"sacct printed stray text: '{text.strip()[:100]}'")
    width = len(SACCT_FIELDS)
    if len(values) % width:
        raise ExternalError(f"sacct printed {len(values)} values, which is no multiple of {width}")
    jobs: list[JobInfo] = []
    for at in range(0, len(values), width):
        raw, state, name, user, account, partition, qos, nodes, code, comment, reservation = values[at : at + width]
        number = re.match(r"\d{1,10}", raw.strip())
        if number is None:
            raise ExternalError(f"sacct printed the job id '{raw.strip()[:40]}'")
        status, _, signal = code.partition(":")
        over = state.split(" ", 1)[0] not in ("PENDING", "RUNNING", "REQUEUED", "SUSPENDED")
        exit_code = 128 + int(signal) if signal.isdigit() and int(signal) else _number(status)
        jobs.append(
            JobInfo(
                int(number[0]),
                state.split(" ", 1)[0],
                name=name,
                user=user,
                account=account,
                partition=partition,
                qos=qos,
                nodes=expand_hostlist(nodes),
                restarts=len(jobs),
                comment=comment,
                reservation=reservation,
                exit_code=exit_code if over else None,
            )
        )
    return jobs


def parse_reservations(text: str) -> list[ReservationInfo]:
    """Reservations from `scontrol --oneliner show reservation`.

    Raises:
        ExternalError: Not what scontrol prints.
    """
    if text.strip() in ("", "No reservations in the system"):
        return []
    found: list[ReservationInfo] = []
    for line in re.split(r"^(?=ReservationName=)", text.strip(), flags=re.MULTILINE):
        if not line.strip():
            continue
        fields = _first_fields(line.split(" Comment=", 1)[0])
        start, end = parse_time(fields.get("StartTime", "")), parse_time(fields.get("EndTime", ""))
        if not line.startswith("ReservationName=") or start is None or end is None:
            raise ExternalError(f"scontrol printed '{line.strip()[:100]}' for a reservation")
        found.append(
            ReservationInfo(
                fields["ReservationName"],
                expand_hostlist(fields.get("Nodes", "")),
                start,
                end,
                frozenset(f for f in fields.get("Flags", "").split(",") if f not in _NOTHING),
                tuple(u for u in fields.get("Users", "").split(",") if u not in _NOTHING),
                tuple(a for a in fields.get("Accounts", "").split(",") if a not in _NOTHING),
            )
        )
    names = [r.name for r in found]
    if len(set(names)) != len(names):
        raise ExternalError("scontrol shows a reservation twice; a comment forges lines")
    return found
