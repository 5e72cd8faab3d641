"""Metrics of one run as a node exporter text file, replaced whole; series that are gone are gone.

prometheus-client is not imported: a prolog cannot afford it, and the text format is this simple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kinemill.agents.files import read_json, write_json, write_text
from kinemill.agents.missing import count_missing
from kinemill.agents.runner import Report
from kinemill.agents.settings import AgentsSettings
from kinemill.contracts.checks import CheckStatus
from kinemill.contracts.metrics import METRICS

__all__ = ["VALUE", "count", "render", "write_metrics"]

VALUE = {CheckStatus.OK: 0, CheckStatus.WARN: 1, CheckStatus.FAIL: 2, CheckStatus.SKIP: 3, CheckStatus.UNKNOWN: 4}
STALE_S = 180
"""A result older than this is no longer shown: a silent agent must not look healthy."""
_BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def render(samples: Iterable[tuple[str, str, Mapping[str, str], float]]) -> str:
    """Text format of `(metric, suffix, labels, value)`; the metric must be in the contract.

    Raises:
        KeyError: A metric that nobody declared.
    """
    lines: list[str] = []
    seen: set[str] = set()
    for name, suffix, labels, value in samples:
        metric = METRICS[name]
        if name not in seen:
            seen.add(name)
            lines += [f"# HELP {name} {metric.help}", f"# TYPE {name} {metric.kind}"]
        inside = ",".join(f'{k}="{_escape(v)}"' for k, v in labels.items())
        lines.append(f"{name}{suffix}{{{inside}}} {value:g}" if inside else f"{name}{suffix} {value:g}")
    return "\n".join(lines) + "\n"


def count(folder: Path, add: Mapping[tuple[str, tuple[tuple[str, str], ...]], float]) -> None:
    """Add to counters that must survive the process.

    Args:
        folder: Where they are kept.
        add: (metric, its sorted labels) -> by how much; nothing is written where nothing is added.
    """
    if not add:
        return
    data = _kept(folder)
    for (name, labels), by in add.items():
        key = name + "|" + "|".join(f"{k}={v}" for k, v in labels)
        data[key] = data.get(key, 0.0) + by
    write_json(folder, "counters.json", data)


def _kept(folder: Path) -> dict[str, float]:
    """What was counted so far; what is no number is no count."""
    data = read_json(folder, "counters.json")
    rows = data.items() if isinstance(data, dict) else ()
    return {key: float(value) for key, value in rows if isinstance(value, int | float)}


def counters(folder: Path) -> list[tuple[str, str, dict[str, str], float]]:
    """All counters kept in `folder`, as samples."""
    rows: list[tuple[str, str, dict[str, str], float]] = []
    for key, value in sorted(_kept(folder).items()):
        name, *pairs = key.split("|")
        labels = dict(p.split("=", 1) for p in pairs if "=" in p)
        if name in METRICS:
            rows.append((name, "", labels, value))
    return rows


def write_metrics(settings: AgentsSettings, report: Report, now_s: int) -> None:
    """Replace `kinemill_node.prom` in the exporter's folder.

    A result of another context (a prolog does not run every check) stays for `STALE_S`, then its series is gone.

    Args:
        settings: Where the exporter reads, where counters are kept.
        report: One run of checks.
        now_s: Seconds since the epoch.
    """
    folder, state = settings.textfile_dir, settings.state_dir / "agents"
    if folder is None:
        return
    results, seconds = _together(state, report, now_s)
    samples: list[tuple[str, str, Mapping[str, str], float]] = []
    for check, (cls, value, _) in results.items():
        samples.append(("kinemill_check_result", "", {"check": check, "class": cls}, float(value)))
    for check, row in seconds.items():
        for bound, hits in zip(_BUCKETS, row[2:], strict=True):
            labels = {"check": check, "le": f"{bound:g}"}
            samples.append(("kinemill_check_seconds", "_bucket", labels, float(hits)))
        samples.append(("kinemill_check_seconds", "_bucket", {"check": check, "le": "+Inf"}, row[1]))
        samples.append(("kinemill_check_seconds", "_sum", {"check": check}, row[0]))
        samples.append(("kinemill_check_seconds", "_count", {"check": check}, row[1]))
    samples += counters(state)
    for hook, times in sorted(count_missing(settings.run_dir, state).items()):
        samples.append(("kinemill_agent_missing_total", "", {"hook": hook}, float(times)))
    samples.append(("kinemill_agent_last_success_timestamp", "", {"part": "node"}, float(now_s)))
    write_text(folder, "kinemill_node.prom", render(samples), mode=0o644, folder_mode=0o755)


def _together(
    state: Path, report: Report, now_s: int
) -> tuple[dict[str, tuple[str, int, int]], dict[str, list[float]]]:
    """This run's results and durations with those of earlier runs that still count.

    Returns:
        Check -> (class, value, seconds since the epoch), and check -> [sum, count, hits of each bucket].
    """
    results: dict[str, tuple[str, int, int]] = {}
    rows: dict[str, list[float]] = {}
    for check, row in _old(state, "results"):
        if len(row) == 3 and _are_numbers(row[1:]) and 0 <= now_s - row[2] <= STALE_S:
            results[check] = (str(row[0]), int(row[1]), int(row[2]))
    for check, row in _old(state, "seconds"):
        if len(row) == 2 + len(_BUCKETS) and _are_numbers(row):
            rows[check] = [float(x) for x in row]
    for r in report.results:
        results[r.check] = (r.cls.value, VALUE[r.status], now_s)
        row = rows.setdefault(r.check, [0.0] * (2 + len(_BUCKETS)))
        row[0] += r.seconds
        row[1] += 1
        for i, bound in enumerate(_BUCKETS):
            row[2 + i] += r.seconds <= bound
    rows = {check: row for check, row in rows.items() if check in results}
    write_json(state, "series.json", {"results": results, "seconds": rows})
    return dict(sorted(results.items())), dict(sorted(rows.items()))


def _old(state: Path, part: str) -> list[tuple[str, list[Any]]]:
    """(check, row) of a part of `series.json`; what is no row is left out."""
    data = read_json(state, "series.json")
    rows = data.get(part) if isinstance(data, dict) else None
    return [(k, v) for k, v in rows.items() if isinstance(v, list)] if isinstance(rows, dict) else []


def _are_numbers(values: list[Any]) -> bool:
    return all(isinstance(x, int | float) for x in values)
