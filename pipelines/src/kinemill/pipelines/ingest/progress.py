"""Shows a run to whoever started it: bars on a terminal, one line an event elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from kinemill.pipelines.ingest.events import Event

__all__ = ["watching"]


@contextmanager
def watching(*, quiet: bool = False) -> Iterator[Callable[[Event], None]]:
    """A receiver of events for the time of a run; everything goes to standard error.

    Args:
        quiet: Show nothing (the caller prints JSON), unless standard error is a terminal.
    """
    if sys.stderr.isatty():
        with _bars() as show:
            yield show
    elif quiet:
        yield lambda event: None
    else:
        yield _line


def _line(event: Event) -> None:
    texts = {
        "plan": f"{event.text}: {event.data.get('to_do', 0)} of {event.data.get('recordings', 0)} recordings to do",
        "skip": f"{event.source}: {event.text}",
        "wait": f"{event.source}: {event.text}",
        "episode": f"published {event.text} ({event.data.get('frames', 0)} frames, {event.data.get('bytes', 0)} bytes)",
        "quarantine": f"put aside {event.source}{event.data.get('episode', '')}: {event.text}",
        "failed": f"failed {event.text}",
    }
    if event.kind in texts:
        print(texts[event.kind], file=sys.stderr)


@contextmanager
def _bars() -> Iterator[Callable[[Event], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        rows: dict[str, Any] = {}
        whole = progress.add_task("recordings", total=None)

        def show(event: Event) -> None:
            if event.kind == "plan":
                progress.update(whole, description=event.text, total=float(event.data["to_do"]))
            elif event.kind == "start":
                rows[event.source] = progress.add_task(event.source[-48:], total=None)
            elif event.kind == "step" and event.source in rows:
                progress.update(rows[event.source], description=f"{event.source[-36:]} {event.text}")
            elif event.kind == "progress" and event.source in rows:
                progress.update(
                    rows[event.source], completed=float(event.data["frames"]), total=float(event.data["of"])
                )
            elif event.kind in ("done", "failed"):
                if event.source in rows:
                    progress.remove_task(rows.pop(event.source))
                progress.advance(whole)
            if event.kind in ("quarantine", "failed", "wait"):
                progress.console.print(f"{event.kind}: {event.text}", markup=False, highlight=False)

        yield show
