"""What the kernel-log checks share: lines since boot and since the last acknowledgement."""

from __future__ import annotations

from kinemill.agents.checks import Finding, unknown
from kinemill.agents.facts import Facts

__all__ = ["kernel_lines", "kernel_missing"]


def kernel_missing(facts: Facts) -> Finding | None:
    """UNKNOWN where the kernel log was not read."""
    if facts.get("kernel.lines") is not None:
        return None
    return unknown("kernel_log_unread", f"kernel log not read (probe {facts.how('kernel_log')})")


def kernel_lines(facts: Facts) -> list[tuple[float, str]]:
    """(seconds since boot, text) after the last acknowledgement of this boot."""
    acknowledged = float(facts.get("ack.kernel_s") or 0.0)
    lines: list[tuple[float, str]] = []
    for item in facts.get("kernel.lines") or []:
        at, text = float(item[0]), str(item[1])
        if at > acknowledged:
            lines.append((at, text))
    return lines
