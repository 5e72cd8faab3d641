"""Tells a person what a run does: a live table on a terminal, one line a role elsewhere. Always on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TextIO

from kinemill.control.deploy.record import Failure, Finding, RunRecord
from kinemill.control.deploy.tally import Tally
from kinemill.control.deploy.together import same_failures, same_findings

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["Show", "summary"]

_MOST_HOSTS = 24
_COLOURS = {"ok": "green", "changed": "yellow", "failed": "red", "unreachable": "red", "untouched": "dim"}


class Show:
    """The screen.

    Args:
        stream: Where to write; standard error unless a test says otherwise.
        quiet: Say nothing at all.
    """

    def __init__(self, stream: TextIO | None = None, *, quiet: bool = False) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._quiet = quiet
        self._start_s = time.monotonic()
        self._role = ""
        self._live: Any = None

    def step(self, text: str) -> None:
        """A part of the run begins."""
        self._line(text)

    def warn(self, text: str) -> None:
        """Something that does not stop the run."""
        self._line(f"note: {text}")

    @contextlib.contextmanager
    def running(self, tally: Tally) -> Iterator[None]:
        """The playbook runs; `tally` is looked at again and again."""
        console = self._console()
        if console is None:
            self._role = ""
            yield
            return
        from rich.live import Live

        with Live(get_renderable=lambda: _table(tally, self._start_s), console=console, refresh_per_second=4) as live:
            self._live = live
            try:
                yield
            finally:
                self._live = None

    def progress(self, tally: Tally) -> None:
        """Something happened; a terminal shows it by itself."""
        if self._live is None and tally.role and tally.role != self._role:
            self._role = tally.role
            self._line(f"{tally.play}: {tally.role}" if tally.role != tally.play else tally.play)

    def _line(self, text: str) -> None:
        if not self._quiet:
            self._stream.write(f"[{time.monotonic() - self._start_s:6.1f} s] {text}\n")
            self._stream.flush()

    def _console(self) -> Console | None:
        if self._quiet or not self._stream.isatty():
            return None
        try:
            from rich.console import Console
        except ImportError:
            return None
        return Console(file=self._stream)


def _table(tally: Tally, start_s: float) -> Any:
    """What a terminal shows: where the run is, and a line for each host; those in trouble first."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    head = Text.assemble(
        (f"{time.monotonic() - start_s:6.0f} s  ", "bold"), (tally.play or "starting", "cyan"), "  ",
        (tally.role if tally.role != tally.play else "", "bold"), "  ", tally.task,
        no_wrap=True, overflow="ellipsis",
    )  # fmt: skip
    table = Table("host", "ok", "changed", "skipped", "failed", "unreachable", box=None, pad_edge=False)
    order = {"failed": 0, "unreachable": 1, "changed": 2, "ok": 3, "untouched": 4}
    rows = sorted(tally.hosts.items(), key=lambda row: (order[row[1].state], row[0]))
    for host, line in rows[:_MOST_HOSTS]:
        counts = (line.ok, line.changed, line.skipped, line.failed, line.unreachable)
        table.add_row(Text(host, style=_COLOURS[line.state]), *(str(count) if count else "" for count in counts))
    parts: list[Any] = [head, table]
    if len(rows) > _MOST_HOSTS:
        parts.append(Text(f"and {len(rows) - _MOST_HOSTS} more", style="dim"))
    return Group(*parts)


def summary(record: RunRecord) -> str:
    """A run in text, for the end of the command."""
    lines: list[str] = []
    fatal = [finding for finding in record.findings if finding.fatal]
    lines += [_finding(finding) for finding in same_findings(record.findings)]
    if fatal:
        lines.append("")
    wide = max((len(host) for host in record.hosts), default=0)
    for host, line in sorted(record.hosts.items()):
        lines.append(
            f"{host:<{wide}}  ok {line.ok:<4} changed {line.changed:<4} failed {line.failed:<3} "
            f"unreachable {line.unreachable:<3} {line.state}"
        )
    slow = sorted(record.roles, key=lambda role: -role.seconds)[:5]
    if slow:
        lines.append("longest: " + ", ".join(f"{role.role} {role.seconds:.1f} s" for role in slow))
    lines += [_failure(failure) for failure in same_failures(record.failures) if not failure.tolerated]
    lines.append(f"{record.inventory}: {_verdict(record)}")
    if record.folder:
        lines.append(f"report: {record.folder}/report.html")
    return "\n".join(lines)


def _finding(finding: Finding) -> str:
    word = {"inventory": "inventory", "secret": "secret", "version": "version", "reach": "reach", "node": "node"}
    return f"{'' if finding.fatal else 'warning: '}{word.get(finding.kind, finding.kind):<9} {finding}"


def _failure(failure: Failure) -> str:
    lines = [f"{failure.host}: {failure.role}: {failure.task} ({failure.where}) {failure.kind}"]
    lines += [f"    {line}" for line in failure.message.splitlines()[:6]]
    if failure.meaning:
        lines.append(f"    that is: {failure.meaning}; {failure.action}")
    return "\n".join(lines)


def _verdict(record: RunRecord) -> str:
    count = sum(finding.fatal for finding in record.findings)
    words = {
        "refused": f"refused for {count} fault{'s' if count != 1 else ''}",
        "deployed": "deployed",
        "checked": "checked, with nothing changed,",
        "failed": "failed",
        "interrupted": "interrupted",
    }
    text = f"{words.get(record.state, record.state)} after {record.seconds:.0f} s"
    return f"{text}; {record.note}" if record.note else text
