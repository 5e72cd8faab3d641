"""What a run is and what came of it: the data that the screen, the report page and `--json` all show."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from kinemill.contracts import ExitCode

__all__ = ["INTERRUPTED", "Failure", "Finding", "HostLine", "NodeLook", "RoleTime", "RunRecord", "exit_code"]

INTERRUPTED = 130
"""Exit code of a run that a person stopped, as shells have it."""


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing that is wrong before anything is touched.

    Attributes:
        kind: `inventory`, `secret`, `version`, `reach`, `node`.
        where: `file:line`, a host, or a tool.
        message: What is wrong.
        action: What to do; empty where the message says it.
        transient: Whether it may go away by itself.
        fatal: Whether it keeps the run from starting; else it is a warning.
    """

    kind: str
    where: str
    message: str
    action: str = ""
    transient: bool = False
    fatal: bool = True

    def __str__(self) -> str:
        """One line for the operator."""
        return f"{self.where}: {self.message}" + (f"; {self.action}" if self.action else "")


@dataclass(frozen=True, slots=True)
class NodeLook:
    """What a node said when it was reached.

    Attributes:
        hostname: What it calls itself.
        free_mb: Room on /, in MiB; -1 where it did not say.
        python: Its python3, such as `3.11`; empty where it has none.
        addresses: Its addresses, without loopback and link-local ones.
        clock_s: Its clock, seconds since the epoch; 0 where it did not say.
    """

    hostname: str = ""
    free_mb: int = -1
    python: str = ""
    addresses: tuple[str, ...] = ()
    clock_s: int = 0


@dataclass(slots=True)
class HostLine:
    """What the run did to one host, in task results."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0
    rescued: int = 0
    ignored: int = 0

    @property
    def state(self) -> str:
        """`failed`, `unreachable`, `changed` or `ok`; `untouched` where nothing ran."""
        for name in ("failed", "unreachable", "changed", "ok"):
            if getattr(self, name):
                return name
        return "untouched"


@dataclass(slots=True)
class RoleTime:
    """What one role took, over all plays that use it.

    Attributes:
        role: Its name; the play's where a task belongs to no role.
        seconds: From the start of its tasks to the start of what came next.
        tasks: Tasks started.
        changed: Results that changed something.
    """

    role: str
    seconds: float = 0.0
    tasks: int = 0
    changed: int = 0


@dataclass(frozen=True, slots=True)
class Failure:
    """One task that failed on one host.

    Attributes:
        host: The host.
        role: The role or play.
        task: The task's name.
        where: `file:line` of the task.
        kind: `failed` or `unreachable`.
        message: What the task said, without secrets.
        meaning: What that means, where it is known.
        action: What to do, where it is known.
        transient: Whether the same run may succeed later.
        tolerated: Whether the playbook went on with this host by its own rules.
    """

    host: str
    role: str
    task: str
    where: str
    kind: str
    message: str
    meaning: str = ""
    action: str = ""
    transient: bool = False
    tolerated: bool = False


@dataclass(slots=True)
class RunRecord:
    """A run, from its start to its end; `run.json` in its folder.

    Attributes:
        inventory: Its name.
        playbook: The playbook.
        state: `running`, `refused`, `deployed`, `checked`, `failed`, `interrupted`.
        check: Whether it only looked.
        limit: The operator's own words; empty for all hosts.
        operator: Who ran it.
        host: Where.
        pid: The process.
        started: ISO 8601, UTC.
        ended: The same; empty while it runs.
        seconds: Its length.
        exit_code: See `exit_code`; -1 while it runs.
        revision: The repository's commit; with `+` where files differ from it.
        versions: Tools that ran.
        findings: What was wrong beforehand.
        nodes: What the nodes said when they were reached.
        hosts: What was done to each.
        roles: Time of each role, in the order of first use.
        failures: What failed.
        note: What ended the run, where no failure says so.
        folder: Where its files are.
    """

    inventory: str
    playbook: str
    state: str = "running"
    check: bool = False
    limit: str = ""
    operator: str = ""
    host: str = ""
    pid: int = 0
    started: str = ""
    ended: str = ""
    seconds: float = 0.0
    exit_code: int = -1
    revision: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    nodes: dict[str, NodeLook] = field(default_factory=dict)
    hosts: dict[str, HostLine] = field(default_factory=dict)
    roles: tuple[RoleTime, ...] = ()
    failures: tuple[Failure, ...] = ()
    note: str = ""
    folder: str = ""


def exit_code(findings: Iterable[Finding], failures: Iterable[Failure], *, ended_well: bool) -> int:
    """What the command exits with.

    A wrong inventory, secret or version: 78. Only things that may pass by themselves, such as nodes that do not
    answer: 75. Anything else that a person must look at: 1.

    Args:
        findings: What was wrong beforehand.
        failures: What failed.
        ended_well: Whether Ansible itself says so.
    """
    fatal = [finding for finding in findings if finding.fatal]
    if any(finding.kind in ("inventory", "secret", "version") for finding in fatal):
        return ExitCode.CONFIG
    if fatal:
        return ExitCode.TRANSIENT if all(finding.transient for finding in fatal) else ExitCode.FINDING
    real = [failure for failure in failures if not failure.tolerated]
    if ended_well:
        return ExitCode.OK
    return ExitCode.TRANSIENT if real and all(failure.transient for failure in real) else ExitCode.FINDING
