"""Run every benchmark and draw docs/benchmarks.md (``make bench``).

Each ``benchmarks/<name>.py`` runs in a process of its own; its last line on stdout is the report that ``frame.py``
defines. A benchmark that breaks, runs over its time or misses a bar makes the whole run end with status 1, and the
others still run.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
NOT_BENCHMARKS: Final = {"frame", "run_all"}
KEYS: Final = ["id", "value", "unit", "better", "bar", "ok", "against"]
LIMIT_S: Final = {True: 150, False: 3600}  # quick runs promise 50 s on a quiet machine
BAR_WIDTH: Final = 30


@dataclass(frozen=True, slots=True)
class Outcome:
    """One benchmark's run: its report, or what went wrong."""

    name: str
    seconds: float
    report: dict[str, Any] | None
    problem: str = ""

    @property
    def missed(self) -> list[str]:
        """Return the figures that missed their bar."""
        return [figure["id"] for figure in (self.report or {}).get("figures", []) if figure["ok"] is False]


def parse(stdout: str) -> dict[str, Any]:
    """Return the report in the last line.

    Raises:
        ValueError: the last line is no report.
    """
    lines = stdout.strip().splitlines()
    try:
        report = json.loads(lines[-1])
        shape = list(report) == ["name", "machine", "figures"] and all(list(one) == KEYS for one in report["figures"])
    except (IndexError, TypeError, json.JSONDecodeError):
        shape = False
    if not shape:
        raise ValueError("its last line on stdout is no report: end it with Bench.finish()")
    return dict(report)


def run(script: Path, *, quick: bool) -> Outcome:
    """Run one benchmark; its words for people go through to stderr."""
    start = time.perf_counter()
    argv = [sys.executable, str(script), *(["--quick"] if quick else [])]
    try:
        done = subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False, timeout=LIMIT_S[quick])
        report = parse(done.stdout)
    except subprocess.TimeoutExpired:
        return Outcome(script.stem, time.perf_counter() - start, None, f"not done within {LIMIT_S[quick]} s")
    except ValueError as problem:
        return Outcome(script.stem, time.perf_counter() - start, None, f"status {done.returncode}: {problem}")
    return Outcome(script.stem, time.perf_counter() - start, report)


def drawn(figure: dict[str, Any]) -> str:
    """Draw a figure against its bar: the mark ``|`` is the bar, the filled part is the value.

    A figure where lower is better is drawn the same way, so there it should stop before the mark.
    """
    value, bar = figure["value"], figure["bar"]
    if value is None or bar is None or bar <= 0 or value < 0:
        return ""
    scale = BAR_WIDTH / max(2.0 * bar, min(value, 4.0 * bar))
    filled = min(BAR_WIDTH, round(value * scale))
    cells = ["█"] * filled + ["·"] * (BAR_WIDTH - filled)
    cells[min(BAR_WIDTH - 1, round(bar * scale))] = "|"
    return "`" + "".join(cells) + "`"


def row(figure: dict[str, Any]) -> str:
    """Return one line of a table."""
    value = "not measured" if figure["value"] is None else f"{figure['value']:g} {figure['unit']}"
    sign = ">=" if figure["better"] == "higher" else "<="
    bar = "" if figure["bar"] is None else f"{sign} {figure['bar']:g}"
    verdict = {True: "ok", False: "**missed**", None: ""}[figure["ok"]]
    return f"| {figure['id']} | {value} | {bar} | {verdict} | {drawn(figure)} | {figure['against']} |"


def page(outcomes: list[Outcome], *, quick: bool) -> str:
    """Return docs/benchmarks.md."""
    machines = sorted({outcome.report["machine"] for outcome in outcomes if outcome.report})
    lines = [
        "# Benchmarks",
        "",
        "Written by `make bench`; do not edit. Every figure is measured against a peer or a physical bound",
        "in the same run, in turns, so that a busy machine slows both. `|` marks the bar.",
        "",
        f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d}, {'quick' if quick else 'long'} run. Machine: {'; '.join(machines)}.",
    ]
    for outcome in outcomes:
        lines += ["", f"## {outcome.name}", ""]
        if outcome.report is None:
            lines += [f"**No figures**: {outcome.problem}"]
            continue
        lines += ["| figure | value | bar | | | against |", "|---|---|---|---|---|---|"]
        lines += [row(figure) for figure in outcome.report["figures"]]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Run all, draw, and say what is wrong."""
    parser = argparse.ArgumentParser(description="Run every benchmark and draw docs/benchmarks.md.")
    parser.add_argument("--quick", action="store_true", help="the short form of each")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these only (drawn on stdout)")
    parser.add_argument("--drawing", type=Path, default=HERE.parent / "docs" / "benchmarks.md", help="where to draw")
    options = parser.parse_args()
    scripts = [path for path in sorted(HERE.glob("[a-z]*.py")) if path.stem not in NOT_BENCHMARKS]
    if unknown := set(options.only) - {path.stem for path in scripts}:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}; there is: {', '.join(path.stem for path in scripts)}")
    outcomes = [run(path, quick=options.quick) for path in scripts if not options.only or path.stem in options.only]
    drawing = page(outcomes, quick=options.quick)
    if options.only:
        sys.stdout.write(drawing)
    else:
        options.drawing.write_text(drawing)
    wrong = 0
    for outcome in outcomes:
        wrong += bool(outcome.problem or outcome.missed)
        verdict = outcome.problem or (f"missed {', '.join(outcome.missed)}" if outcome.missed else "ok")
        sys.stderr.write(f"{outcome.name:<28} {outcome.seconds:7.1f} s  {verdict}\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
