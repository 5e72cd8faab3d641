"""Drains: the reason's grammar, the event, the ledger's entry and the node's report.

Grammar: `kinemill1|<check>|<T|H>|<code>|<event>|<text>`. Slurm appends ` : text` of its own, so
parsing stops at the first ` : `. A reason alone never proves ownership: the ledger does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinemill.errors import ContractError

__all__ = ["REASON_MAX", "REASON_PREFIX", "DrainEvent", "LedgerEntry", "NodeReport", "format_reason", "parse_reason"]

REASON_PREFIX = "kinemill1"
REASON_MAX = 120
"""Characters shown by the usual tools; Slurm itself stores thousands."""

_REASON = re.compile(
    r"kinemill1\|(?P<check>[a-z0-9_.]{1,40})\|(?P<letter>[TH])\|(?P<code>[a-z0-9_.]{1,32})\|(?P<event>[0-9a-f]{8})\|(?P<text>[^|]*)"
)
_TEXT = re.compile(r"[^ -{}~]|\|")  # anything but printable ASCII, and the separator


@dataclass(frozen=True, slots=True)
class DrainEvent:
    """One decision to drain, as written into Slurm's reason."""

    check: str
    letter: str
    """`T` transient or `H` hard."""
    code: str
    event: str
    """8 hex digits, drawn once per fault."""
    text: str


def format_reason(event: DrainEvent) -> str:
    """The reason text, at most `REASON_MAX` characters; hostile text is made harmless.

    Raises:
        ContractError: A check, letter, code or event id that the grammar does not allow.
    """
    text = _TEXT.sub("?", event.text.replace(" : ", ": "))
    head = f"{REASON_PREFIX}|{event.check}|{event.letter}|{event.code}|{event.event}|"
    reason = head + text[: max(0, REASON_MAX - len(head))]
    if _REASON.fullmatch(reason) is None:
        raise ContractError(f"drain event {event} does not fit the reason grammar")
    return reason


def parse_reason(reason: str) -> DrainEvent | None:
    """The event in `reason`, or None where it is not ours (a human's, Slurm's, or damaged)."""
    match = _REASON.fullmatch(reason.split(" : ", 1)[0])
    if match is None:
        return None
    return DrainEvent(match["check"], match["letter"], match["code"], match["event"], match["text"])


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """Proof that a drain is ours: it counts only while Slurm still shows exactly this."""

    node: str
    event: DrainEvent
    reason: str
    """Slurm's reason as read back after writing."""
    reason_time_s: int
    """Slurm's own reason time, seconds since the epoch."""
    reason_uid: int
    boot_id: str
    drained_at_ns: int
    resumes_24h: int = 0
    version: int = 1


@dataclass(frozen=True, slots=True)
class NodeReport:
    """Compact JSON in the node's `Extra` (or `Comment`): the only channel from node to controller."""

    event: str
    """The open event's 8 hex digits, or empty."""
    boot: str
    """/proc/sys/kernel/random/boot_id."""
    passes: int
    """Clean full passes in a row since the event."""
    ts: int
    """Seconds since the epoch of the last pass; older than 120 s counts as none."""
    version: int = 1
