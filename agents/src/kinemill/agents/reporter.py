"""The out-of-band half on the node: turns Slurm's own drain text into our reason, and reports upward.

Runs from a timer, never inside a hook. What Slurm shows is read first, and unknown means hands off:
a human's reason is never overwritten, and a node that a human drained is never drained again.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from kinemill.agents.state import Memory
from kinemill.agents.verdict import StoredVerdict
from kinemill.contracts.fleet import NodeReport, parse_reason
from kinemill.contracts.slurm import NodeInfo, SlurmAdmin
from kinemill.errors import KinemillError
from kinemill.records import dumps

__all__ = ["SLURM_TEXTS", "Act", "Move", "plan", "report_node"]

log = logging.getLogger(__name__)

SLURM_TEXTS = ("Prolog error", "Epilog error", "Kill task failed", "batch job complete failure")
"""Drain reasons that Slurm writes by itself when a hook or a clean-up fails."""
_SLACK_S = 2
"""Clocks of node and controller differ by less, or munge would refuse them long before."""
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_HANDS_OFF = ("UNKNOWN", "POWER", "REBOOT", "MAINT", "FUTURE", "PLANNED")


class Act(enum.StrEnum):
    """What the reporter does to the node's state."""

    NOTHING = "nothing"
    DRAIN = "drain"
    """The node is in service and our verdict says that it must not be."""
    EXPLAIN = "explain"
    """Slurm drained it with its own text after our verdict: put our reason there."""
    CLOSE = "close"
    """The node is back in service: our fault is over."""


@dataclass(frozen=True, slots=True)
class Move:
    """An act and why."""

    act: Act
    why: str


def plan(node: NodeInfo, verdict: StoredVerdict | None, *, fault_open: bool, passes: int) -> Move:
    """What to do, from what Slurm shows and what was measured. Pure.

    Args:
        node: This node as slurmctld sees it.
        verdict: The last verdict of this boot.
        fault_open: Whether our memory holds an open fault.
        passes: Clean passes since that fault.
    """
    drained = bool(node.states & _DRAINED)
    if any(s.startswith(_HANDS_OFF) for s in node.states):
        return Move(Act.NOTHING, f"state {'+'.join(sorted(node.states))} is left alone")
    if verdict is None or not verdict.reason:
        if fault_open and not drained and passes > 0:
            return Move(Act.CLOSE, "the node is in service again and passes")
        return Move(Act.NOTHING, "nothing to say")
    if not drained:
        return Move(Act.DRAIN, f"{verdict.context} found a fault and the node is in service")
    text = node.reason.split(" : ", 1)[0].strip()
    if text in SLURM_TEXTS:
        newer = node.reason_time_s is not None and node.reason_time_s >= verdict.at_s - _SLACK_S
        if newer:
            return Move(Act.EXPLAIN, f"'{text}' is Slurm's word for our verdict")
        return Move(Act.NOTHING, f"'{text}' is older than our verdict")
    if parse_reason(node.reason) is not None:
        return Move(Act.NOTHING, "drained with a reason of ours already")
    return Move(Act.NOTHING, "drained by somebody else, whose reason stays")


def report_node(
    name: str, slurm: SlurmAdmin, verdict: StoredVerdict | None, memory: Memory, boot_id: str | None
) -> Move:
    """Read, plan, re-read, act, and write the node's report.

    Slurm has no compare-and-set, so the node is read again right before its reason is written, and
    any difference ends in nothing done.

    Raises:
        KinemillError: Slurm did not answer; the next timer tries again.
    """
    (before,) = slurm.nodes([name])
    fault = memory.open_fault()
    if verdict is not None and verdict.boot_id != boot_id:
        verdict = None  # from before a reboot: measured on another boot
    move = plan(before, verdict, fault_open=fault is not None, passes=fault.passes if fault else 0)
    if move.act in (Act.DRAIN, Act.EXPLAIN) and verdict is not None:
        (now,) = slurm.nodes([name])
        if (now.states, now.reason, now.reason_time_s) != (before.states, before.reason, before.reason_time_s):
            return Move(Act.NOTHING, "the node changed while we looked; the next pass decides")
        slurm.drain(name, verdict.reason)
    elif move.act is Act.CLOSE:
        memory.close()
        fault = None
    report = NodeReport(
        event=fault.event if fault else "",
        boot=boot_id or "",
        passes=fault.passes if fault else 0,
        ts=fault.last_pass_s if fault else (verdict.at_s if verdict else 0),
    )
    try:
        if before.extra != dumps(report):
            slurm.set_extra(name, dumps(report))
    except KinemillError as exc:
        log.warning("the report did not reach the controller: %s", exc)
    return move
