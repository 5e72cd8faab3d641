"""What the kernel-log checks share: lines since boot and since the last acknowledgement."""

from __future__ import annotations

from kinemill.agents.checks import Finding, unknown, warn
from kinemill.agents.facts import Facts

__all__ = ["kernel_lines", "kernel_missing", "lost_lines"]


def kernel_missing(facts: Facts) -> Finding | None:
    """UNKNOWN where the kernel log was not read."""
    if facts.get("kernel.lines") is not None:
        return None
    return unknown("kernel_log_unread", f"kernel log not read (probe {facts.how('kernel_log')})")


def kernel_lines(facts: Facts) -> list[tuple[float, str]]:
    """(seconds since boot, text) after the last acknowledgement of this boot, remembered XIDs included."""
    acknowledged = float(facts.get("ack.kernel_s") or 0.0)
    lines: set[tuple[float, str]] = set()
    for item in [*(facts.get("kernel.kept") or []), *(facts.get("kernel.lines") or [])]:
        at, text = float(item[0]), str(item[1])
        if at > acknowledged:
            lines.add((at, text))
    return sorted(lines)


def lost_lines(facts: Facts) -> list[Finding]:
    """WARN where a flood overwrote messages: what was read is judged, and XIDs read earlier are remembered."""
    if not facts.get("kernel.lost"):
        return []
    return [warn("kernel_log_lost", "a flood overwrote kernel messages before they were read", source="kernel")]
