"""Metrics of one run as a node exporter text file, replaced whole; series that are gone are gone.

prometheus-client is not imported: a prolog cannot afford it, and the text format is this simple.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from kinemill.agents.files import read_json, write_json, write_text
from kinemill.agents.runner import Report
from kinemill.contracts.checks import CheckStatus
from kinemill.contracts.metrics import METRICS

__all__ = ["VALUE", "count", "render", "write_metrics"]

VALUE = {CheckStatus.OK: 0, CheckStatus.WARN: 1, CheckStatus.FAIL: 2, CheckStatus.SKIP: 3, CheckStatus.UNKNOWN: 4}
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


def count(folder: Path, name: str, labels: Mapping[str, str], by: float = 1.0) -> None:
    """Add to a counter that must survive the process."""
    data = read_json(folder, "counters.json") or {}
    key = name + "|" + "|".join(f"{k}={v}" for k, v in sorted(labels.items()))
    data[key] = float(data.get(key, 0.0)) + by
    write_json(folder, "counters.json", data)


def counters(folder: Path) -> list[tuple[str, str, dict[str, str], float]]:
    """All counters kept in `folder`, as samples."""
    rows: list[tuple[str, str, dict[str, str], float]] = []
    for key, value in sorted((read_json(folder, "counters.json") or {}).items()):
        name, *pairs = key.split("|")
        labels = dict(p.split("=", 1) for p in pairs if "=" in p)
        if name in METRICS:
            rows.append((name, "", labels, float(value)))
    return rows


def write_metrics(folder: Path, state: Path, report: Report, now_s: int) -> None:
    """Replace `kinemill_node.prom` in the exporter's folder with this run's series.

    Args:
        folder: The node exporter's text file folder.
        state: Where counters are kept.
        report: One run of checks.
        now_s: Seconds since the epoch.
    """
    samples: list[tuple[str, str, Mapping[str, str], float]] = []
    for r in report.results:
        samples.append(("kinemill_check_result", "", {"check": r.check, "class": r.cls.value}, float(VALUE[r.status])))
    for r in report.results:
        for bound in _BUCKETS:
            labels = {"check": r.check, "le": f"{bound:g}"}
            samples.append(("kinemill_check_seconds", "_bucket", labels, float(r.seconds <= bound)))
        samples.append(("kinemill_check_seconds", "_bucket", {"check": r.check, "le": "+Inf"}, 1.0))
        samples.append(("kinemill_check_seconds", "_sum", {"check": r.check}, r.seconds))
        samples.append(("kinemill_check_seconds", "_count", {"check": r.check}, 1.0))
    samples += counters(state)
    samples.append(("kinemill_agent_last_success_timestamp", "", {"part": "node"}, float(now_s)))
    write_text(folder, "kinemill_node.prom", render(samples), mode=0o644, folder_mode=0o755)
