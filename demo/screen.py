"""What the demo shows while it runs: numbered stages, one live line, and a table at the end."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TextIO

__all__ = ["Screen", "Stage"]


@dataclass(slots=True)
class Stage:
    """One stage of the run."""

    number: int
    name: str
    seconds: float = 0.0
    lines: list[str] = field(default_factory=list)
    """What it said, kept for the report."""


class Screen:
    """Writes to a terminal (one line that is rewritten) or to a log (plain lines)."""

    def __init__(self, stages: int, *, out: TextIO | None = None) -> None:
        self._out = out or sys.stderr
        self._live = self._out.isatty()
        self._of = stages
        self._last_live = 0.0
        self._live_open = False
        self.stages: list[Stage] = []

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[Stage]:
        """Times a stage and says so."""
        found = Stage(len(self.stages) + 1, name)
        self.stages.append(found)
        self._write(f"[{found.number}/{self._of}] {name}")
        began = time.monotonic()
        try:
            yield found
        finally:
            found.seconds = time.monotonic() - began
            self._clear()
        self._write(f"      done in {found.seconds:.1f} s")

    def say(self, line: str) -> None:
        """A line that stays."""
        if self.stages:
            self.stages[-1].lines.append(line)
        self._write(f"      {line}")

    def live(self, line: str) -> None:
        """A line that the next one replaces; on a log, one every ten seconds."""
        now = time.monotonic()
        if self._live:
            if now - self._last_live >= 0.1:
                self._last_live = now
                self._out.write(f"\r\x1b[2K      {line[:110]}")
                self._out.flush()
                self._live_open = True
        elif now - self._last_live >= 10.0:
            self._last_live = now
            self._write(f"      {line}")

    def table(self, title: str, rows: list[tuple[str, str]]) -> None:
        """Two columns, the second one aligned."""
        wide = max(len(name) for name, _ in rows)
        self._write("")
        self._write(title)
        for name, value in rows:
            self._write(f"  {name:<{wide}}  {value}")
        self._write("")

    def _write(self, line: str) -> None:
        self._clear()
        self._out.write(line + "\n")
        self._out.flush()

    def _clear(self) -> None:
        if self._live_open:
            self._out.write("\r\x1b[2K")
            self._live_open = False
