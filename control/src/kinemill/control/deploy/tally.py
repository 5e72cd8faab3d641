"""Counts what Ansible reports: results per host, time per role, failures with their remedies."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kinemill.control.deploy.record import Failure, HostLine, RoleTime
from kinemill.control.deploy.remedy import explain

__all__ = ["Tally", "message_of"]

_RESULTS = {"runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"}
_STATS = {"ok": "ok", "changed": "changed", "failures": "failed", "dark": "unreachable", "skipped": "skipped"}
_LONGEST = 4000


class Tally:
    """The state of a run as far as events tell it.

    Args:
        repo: Paths below it are shown relative to it.

    Attributes:
        hosts: Results by host.
        roles: Time by role, in the order of first use.
        failures: What failed, as it failed.
        play: The running play.
        role: The running role.
        task: The running task.
        tasks: Tasks started.
        complaint: What Ansible itself said as an error, outside of any task.
        finished: Whether Ansible came to its own end.
    """

    def __init__(self, repo: Path | None = None) -> None:
        self.hosts: dict[str, HostLine] = {}
        self.roles: list[RoleTime] = []
        self.failures: list[Failure] = []
        self.play = ""
        self.role = ""
        self.task = ""
        self.tasks = 0
        self.complaint = ""
        self.finished = False
        self._repo = repo
        self._by_role: dict[str, RoleTime] = {}
        self._since: datetime.datetime | None = None

    def expect(self, host: str) -> None:
        """Count a host from the start, also if nothing ever happens on it."""
        self.hosts.setdefault(host, HostLine())

    def feed(self, event: Mapping[str, Any]) -> None:
        """Take one event of ansible-runner, secrets already out."""
        kind = str(event.get("event", ""))
        data = event.get("event_data")
        data = data if isinstance(data, Mapping) else {}
        if kind in ("playbook_on_play_start", "playbook_on_task_start", "playbook_on_handler_task_start"):
            self._turn(event, data, task=kind != "playbook_on_play_start")
        elif kind in _RESULTS:
            self._result(kind, data)
        elif kind == "playbook_on_stats":
            self._pass_time(event)
            self._stats(data)
        elif kind in ("verbose", "error"):
            self._complain(str(event.get("stdout", "")))

    def end(self, when: str = "") -> None:
        """The run is over, whatever its events said last.

        Args:
            when: ISO 8601; the running role's time ends there.
        """
        self._pass_time({"created": when})
        self._since = None

    def _turn(self, event: Mapping[str, Any], data: Mapping[str, Any], *, task: bool) -> None:
        """A play or task begins: the time until now was the one's before."""
        self._pass_time(event)
        self.play = str(data.get("play") or data.get("name") or self.play)
        if not task:
            self.role = self.task = ""
            return
        self.role = str(data.get("role") or self.play)
        self.task = str(data.get("task") or data.get("name") or "")
        self.tasks += 1
        self._line(self.role).tasks += 1
        self._since = _time(event.get("created"))

    def _pass_time(self, event: Mapping[str, Any]) -> None:
        now = _time(event.get("created"))
        if self._since is not None and now is not None and self.role:
            self._line(self.role).seconds += max(0.0, (now - self._since).total_seconds())
            self._since = now

    def _line(self, role: str) -> RoleTime:
        if role not in self._by_role:
            self._by_role[role] = RoleTime(role)
            self.roles.append(self._by_role[role])
        return self._by_role[role]

    def _result(self, kind: str, data: Mapping[str, Any]) -> None:
        name = str(data.get("host") or data.get("remote_addr") or "?")
        line = self.hosts.setdefault(name, HostLine())
        result = data.get("res")
        result = result if isinstance(result, Mapping) else {}
        if kind == "runner_on_skipped":
            line.skipped += 1
        elif kind == "runner_on_ok":
            line.ok += 1
            if result.get("changed"):
                line.changed += 1
                self._line(str(data.get("role") or data.get("play") or "?")).changed += 1
        else:
            tolerated = bool(data.get("ignore_errors"))
            which = "unreachable" if kind == "runner_on_unreachable" else "ignored" if tolerated else "failed"
            setattr(line, which, getattr(line, which) + 1)
            self._fail(name, which, data, result, tolerated)

    def _fail(self, host: str, kind: str, data: Mapping[str, Any], result: Mapping[str, Any], tolerated: bool) -> None:
        message = message_of(result)
        remedy = explain(message)
        self.failures.append(
            Failure(
                host=host,
                role=str(data.get("role") or data.get("play") or ""),
                task=str(data.get("task") or ""),
                where=self._relative(str(data.get("task_path") or "")),
                kind="unreachable" if kind == "unreachable" else "failed",
                message=message[:_LONGEST],
                meaning=remedy.meaning if remedy else "",
                action=remedy.action if remedy else "",
                transient=kind == "unreachable" if remedy is None else remedy.transient,
                tolerated=tolerated,
            )
        )

    def _relative(self, place: str) -> str:
        prefix = f"{self._repo}/" if self._repo is not None else ""
        return place.removeprefix(prefix) if prefix else place

    def _stats(self, data: Mapping[str, Any]) -> None:
        """Ansible's own counts win; they know what was rescued."""
        self.finished = True
        for theirs, ours in (*_STATS.items(), ("rescued", "rescued"), ("ignored", "ignored")):
            counts = data.get(theirs)
            for host, count in (counts if isinstance(counts, Mapping) else {}).items():
                setattr(self.hosts.setdefault(str(host), HostLine()), ours, int(count))
        failed, dark = (dict(data.get(name) or {}) for name in ("failures", "dark"))
        for index, failure in enumerate(self.failures):
            counts = dark if failure.kind == "unreachable" else failed
            if not counts.get(failure.host) and not failure.tolerated:
                self.failures[index] = _tolerated(failure)
                line = self.hosts[failure.host]
                if failure.kind == "failed":
                    line.failed = 0
                else:
                    line.unreachable = 0

    def _complain(self, text: str) -> None:
        """Keep what Ansible says where no task says it: a broken playbook, a missing role."""
        line = text.strip()
        if line.startswith(("[ERROR]", "ERROR!")):
            self.complaint = line
        elif self.complaint and line and len(self.complaint) < _LONGEST and not line.startswith("["):
            self.complaint += f"\n{line}"


def message_of(result: Mapping[str, Any]) -> str:
    """What a failed result says, in one text: its message, what its command wrote, and which of its items failed."""
    parts: list[str] = []
    said = result.get("msg")
    if isinstance(said, list | tuple):
        parts += [str(line) for line in said]
    elif said not in (None, ""):
        parts.append(str(said).strip())
    for name in ("stderr", "module_stderr", "stdout", "module_stdout"):
        text = str(result.get(name) or "").strip()
        if text and text not in parts[0:1]:
            parts.append(text[-1000:])
            break
    items = result.get("results")
    for item in items if isinstance(items, list) else []:
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable")):
            parts.append(f"item {item.get('item', '?')}: {message_of(item)}")
    if result.get("censored"):
        parts.append("the task hides its output (no_log); run it by hand on the node to see what it says")
    return "\n".join(parts) or "it said nothing"


def _tolerated(failure: Failure) -> Failure:
    return dataclasses.replace(failure, tolerated=True)


def _time(text: Any) -> datetime.datetime | None:
    try:
        found = datetime.datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=datetime.UTC)
