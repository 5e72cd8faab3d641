"""Slurm through its own commands: JSON where this release's `scontrol` has it and we know its form, text always.

One object is both `SlurmAdmin` and `SlurmJobs`. Every call is bounded in time. What a command
printed is either understood whole or refused with `ExternalError`; nothing is guessed.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Sequence
from typing import TypeVar

from kinemill.contracts.slurm import JobInfo, JobRequest, NodeInfo, ReservationInfo, SlurmAdmin, SlurmJobs
from kinemill.errors import ExternalError, KinemillError, NotFoundError, StateError, UsageError
from kinemill.slurm import jsonform, text
from kinemill.slurm.run import Answer, Run, failure, run_here

__all__ = ["REASON_LIMIT", "CliSlurm", "check_name", "check_reason", "open_admin", "open_jobs"]

log = logging.getLogger(__name__)

_T = TypeVar("_T")

REASON_LIMIT = 4000
_NO_JSON = re.compile(r"(?:unrecognized|unknown|invalid) option|--json|serializer|data_parser", re.IGNORECASE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}")
_RESERVATION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@-]{0,254}")
_FINISHED = frozenset(
    {
        "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "DEADLINE", "BOOT_FAIL",
        "PREEMPTED", "COMPLETING",
    }
)  # fmt: skip


class CliSlurm:
    """Slurm's commands as `SlurmAdmin` and `SlurmJobs`.

    Args:
        run: How a command is run; another one reaches a remote controller, or replays a recording.
        timeout_s: For each command.
        json: True or False decides the form of answers; None asks the release once.
    """

    def __init__(self, run: Run = run_here, *, timeout_s: float = 10.0, json: bool | None = None) -> None:
        self._run = run
        self._timeout_s = timeout_s
        self._json = json
        self._has_extra: bool | None = None

    # ---- asking

    def _ask(self, *argv: str) -> str:
        answer = self._call(argv)
        if answer.code != 0:
            raise failure(argv, answer)
        return answer.out

    def _call(self, argv: Sequence[str]) -> Answer:
        return self._run(argv, {}, self._timeout_s)

    def _json_answer(self, parse: Callable[[str], list[_T]], *words: str) -> list[_T] | None:
        """What `scontrol --json WORDS` says, or None where text must be asked.

        The first call finds out, by itself and at no extra cost: a release without the option, or one whose form is
        not known here, is asked for text from then on.

        Raises:
            KinemillError: The controller does not answer, or refuses.
        """
        if self._json is False:
            return None
        argv = ("scontrol", "--json", *words)
        answer = self._call(argv)
        if answer.code != 0:
            if self._json is None and _NO_JSON.search(answer.err + answer.out):
                self._json = False
                return None
            raise failure(argv, answer)
        try:
            found = parse(answer.out)
        except ExternalError as exc:
            if self._json:
                raise
            log.warning("scontrol's JSON is not in a form that is known here; its text is read: %s", exc)
            self._json = False
            return None
        self._json = True
        return found

    # ---- administration

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """The named nodes in that order, or all.

        Raises:
            NotFoundError: A name that this cluster does not have.
        """
        for name in names:
            check_name(name)
        wanted = ",".join(names)
        rows = self._json_answer(jsonform.nodes, "show", "node", *([wanted] if names else []))
        found = _twice_refused(rows) if rows is not None else self._text_nodes(wanted)
        if not names:
            return list(found.values())
        missing = [n for n in names if n not in found]
        if missing:
            raise NotFoundError(f"node '{missing[0]}' is not in this cluster; see: sinfo -N")
        return [found[n] for n in names]

    def _text_nodes(self, wanted: str) -> dict[str, NodeInfo]:
        mark = _mark()
        only = [f"--nodes={wanted}"] if wanted else []
        lines = self._call(("scontrol", "--details", "--oneliner", "show", "node", *([wanted] if wanted else [])))
        if lines.code != 0 and not re.search(r"Node \S+ not found", lines.out):
            raise failure(("scontrol", "show", "node"), lines)
        shown = re.sub(r"^Node \S+ not found$", "", lines.out, flags=re.MULTILINE)
        marks = self._ask("sinfo", "--all", "--Node", "--noheader", *only, "-o", text.marked(text.NODE_FORMAT, mark))
        return {n.name: n for n in text.parse_nodes(shown, marks, mark)}

    def jobs(self) -> list[JobInfo]:
        """All jobs that slurmctld still holds."""
        rows = self._json_answer(jsonform.jobs, "show", "jobs")
        return rows if rows is not None else self._text_jobs()

    def _text_jobs(self, job_id: int | None = None) -> list[JobInfo]:
        mark = _mark()
        common = ["squeue", "--all", "--noheader", "--states=all"]
        common += [f"--jobs={job_id}"] if job_id is not None else []
        marks = self._ask(*common, "-o", text.marked(text.JOB_FORMAT, mark))
        numbers = self._ask(*common, "-O", "JobID:30,RestartCnt:20,exit_code:20")
        return text.parse_jobs(marks, numbers, mark)

    def reservations(self) -> list[ReservationInfo]:
        """All reservations."""
        rows = self._json_answer(jsonform.reservations, "show", "reservations")
        if rows is not None:
            return rows
        return text.parse_reservations(self._ask("scontrol", "--oneliner", "show", "reservation"))

    def drain(self, node: str, reason: str) -> None:
        """Drain one node. Overwrites a reason that stands there: check first.

        Raises:
            NotFoundError: No such node.
            UsageError: The reason is empty, over `REASON_LIMIT` characters, or holds control characters.
        """
        check_name(node)
        check_reason(reason)
        self._ask("scontrol", "update", f"NodeName={node}", "State=DRAIN", f"Reason={reason}")

    def resume(self, node: str) -> None:
        """Resume one node.

        Raises:
            StateError: It is neither drained nor down, or is not valid.
        """
        check_name(node)
        try:
            self._ask("scontrol", "update", f"NodeName={node}", "State=RESUME")
        except StateError as exc:
            raise StateError(
                f"node '{node}' is not resumed: only a drained or down node that is valid is ({exc})"
            ) from exc

    def set_extra(self, node: str, text: str) -> None:
        """Write the node's `Extra`, or `Comment` where the release has no Extra."""
        check_name(node)
        if not text.isprintable() or len(text) > REASON_LIMIT:
            raise UsageError(f"a node's Extra is at most {REASON_LIMIT} printable characters; got {text!r:.60}")
        if self._has_extra is not False:
            argv = ("scontrol", "update", f"NodeName={node}", f"Extra={text}")
            answer = self._call(argv)
            if answer.code == 0 and "not supported" not in answer.err + answer.out:
                self._has_extra = True
                return
            problem = failure(argv, answer)
            if self._has_extra or problem.transient or isinstance(problem, NotFoundError):
                raise problem
            self._has_extra = False
        self._ask("scontrol", "update", f"NodeName={node}", f"Comment={text}")

    def delete_reservation(self, name: str) -> None:
        """Delete one reservation.

        Raises:
            NotFoundError: No such reservation.
        """
        if _RESERVATION.fullmatch(name) is None:
            raise UsageError(f"'{name[:60]}' is not a reservation's name")
        self._ask("scontrol", "delete", f"ReservationName={name}")

    # ---- jobs

    def submit(self, request: JobRequest) -> int:
        """The new job's id. The environment goes through the process, never through arguments.

        Raises:
            ExternalError: sbatch refused, or printed no id.
        """
        argv = ["sbatch", "--parsable", f"--job-name={request.name}", f"--nodes={request.nodes}"]
        argv += [f"--cpus-per-task={request.cpus_per_task}", "--requeue" if request.requeue else "--no-requeue"]
        for option, value in (
            ("comment", request.comment),
            ("mem", f"{request.mem_mb}M" if request.mem_mb is not None else ""),
            ("gres", request.gres),
            ("time", _minutes(request.time_limit_s)),
            ("partition", request.partition),
            ("account", request.account),
            ("qos", request.qos),
            ("output", str(request.output) if request.output else ""),
        ):
            if value:
                argv.append(f"--{option}={value}")
        argv += ["--export=ALL", "--", str(request.script), *request.args]
        answer = self._run(argv, request.environment, self._timeout_s)
        if answer.code != 0:
            raise failure(argv, answer)
        match = re.fullmatch(r"(\d{1,10})(?:;\S*)?", answer.out.strip())
        if match is None:
            raise ExternalError(
                f"sbatch printed '{answer.out.strip()[:80]}' instead of a job id; look for the job by name"
            )
        return int(match[1])

    def state(self, job_id: int) -> JobInfo:
        """The job, from slurmctld or accounting.

        Raises:
            NotFoundError: Neither knows it.
        """
        try:
            # Not JSON: asked for one job, 24.11 gives one answer for "no such job" and "controller down".
            found = self._text_jobs(job_id)
        except NotFoundError:
            found = []
        mine = [j for j in found if j.job_id == job_id]
        return mine[0] if mine else self._accounted(job_id)

    def _accounted(self, job_id: int) -> JobInfo:
        mark = _mark()
        fields = ",".join(text.SACCT_FIELDS)
        argv = ["sacct", "--noheader", "--parsable", "--allocations", "--duplicates", f"--jobs={job_id}"]
        argv += [f"--delimiter={mark}", f"--format={fields}"]
        try:
            rows = [j for j in text.parse_accounting(self._ask(*argv), mark) if j.job_id == job_id]
        except KinemillError as exc:
            if exc.transient:
                raise
            rows = []
            log.debug("accounting did not answer for job %d: %s", job_id, exc)
        if not rows:
            raise NotFoundError(f"job {job_id} is known neither to slurmctld nor to accounting")
        return rows[-1]

    def cancel(self, job_id: int) -> None:
        """Cancel; a finished job is no error.

        Raises:
            NotFoundError: No such job.
        """
        try:
            self._ask("scancel", str(job_id))
        except (NotFoundError, StateError, ExternalError):
            if self.state(job_id).state not in _FINISHED:
                raise

    def requeue(self, job_id: int) -> None:
        """Put a running job back into the queue."""
        self._job_command("requeue", job_id)

    def hold(self, job_id: int) -> None:
        """Keep a pending job from starting."""
        self._job_command("hold", job_id)

    def release(self, job_id: int) -> None:
        """Undo `hold`."""
        self._job_command("release", job_id)

    def note(self, job_id: int, words: str) -> None:
        """Write the administrator's comment of a job: what an operator found about it.

        A job that has ended is changed in accounting, which keeps the text in lower case.

        Raises:
            NotFoundError: Neither slurmctld nor accounting knows the job, or there is no accounting.
        """
        if not words.isprintable() or len(words) > REASON_LIMIT:
            raise UsageError(f"a job's note is at most {REASON_LIMIT} printable characters; got {words!r:.60}")
        try:
            self._ask("scontrol", "update", f"JobId={job_id}", f"AdminComment={words}")
        except (StateError, NotFoundError):
            where = ("modify", "job", "where", f"JobID={job_id}", "set", f"AdminComment={words}")
            answer = self._call(("sacctmgr", "--immediate", *where))
            if answer.code != 0 or "Modified" not in answer.out:
                problem = failure(("sacctmgr", *where), answer)
                if problem.transient:
                    raise problem from None
                raise NotFoundError(f"job {job_id} has ended and accounting took no note ({problem})") from None

    def _job_command(self, word: str, job_id: int) -> None:
        self._ask("scontrol", word, str(job_id))


def open_admin(run: Run = run_here, *, timeout_s: float = 10.0) -> SlurmAdmin:
    """Slurm for an administrator, through its commands."""
    return CliSlurm(run, timeout_s=timeout_s)


def open_jobs(run: Run = run_here, *, timeout_s: float = 10.0) -> SlurmJobs:
    """Slurm for a submitter, through its commands."""
    return CliSlurm(run, timeout_s=timeout_s)


def _mark() -> str:
    return f"@{secrets.token_hex(16)}"


def check_name(name: str) -> None:
    """One node by its plain name: `ALL` or `n[1-9]` would reach others.

    Raises:
        UsageError: Not one.
    """
    if _NAME.fullmatch(name) is None or name.upper() == "ALL":
        raise UsageError(f"'{name[:60]}' is not one node's name")


def check_reason(reason: str) -> None:
    """A text that forges no line anywhere.

    Raises:
        UsageError: It is empty, over `REASON_LIMIT` characters, or holds control characters.
    """
    if not reason.strip() or len(reason) > REASON_LIMIT or not reason.isprintable():
        raise UsageError(f"a drain reason is 1 to {REASON_LIMIT} printable characters on one line; got {reason!r:.60}")


def _minutes(seconds: int | None) -> str:
    """Slurm's time limit: whole minutes, rounded up."""
    return str(max(1, -(-seconds // 60))) if seconds is not None else ""


def _twice_refused(found: list[NodeInfo]) -> dict[str, NodeInfo]:
    by_name = {n.name: n for n in found}
    if len(by_name) != len(found):
        raise ExternalError("Slurm's JSON holds a node twice")
    return by_name
