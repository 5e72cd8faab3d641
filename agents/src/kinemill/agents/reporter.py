"""The out-of-band half on the node: turns Slurm's own drain text into our reason, and reports upward.

Runs from a timer, never inside a hook. What Slurm shows is read first, and unknown means hands off:
a human's reason is never overwritten, and a node that a human drained is never drained again.
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from kinemill.agents.state import Memory, OpenFault
from kinemill.agents.verdict import reason_of
from kinemill.contracts.fleet import NodeReport, parse_reason
from kinemill.contracts.slurm import NodeInfo, SlurmAdmin
from kinemill.errors import KinemillError
from kinemill.records import dumps

__all__ = ["SLURM_TEXTS", "Act", "JobNotes", "Move", "plan", "report_node"]

log = logging.getLogger(__name__)

SLURM_TEXTS = ("Prolog error", "Epilog error", "Kill task failed", "batch job complete failure")
"""Drain reasons that Slurm writes by itself when a hook or a clean-up fails."""
_SLACK_S = 2
"""Clocks of node and controller differ by less, or munge would refuse them long before."""
_NOTE_WAITS_S = 600
_TELL_AGAIN_S = 600
"""A thousand healthy nodes with nothing to say do not ask the controller twice a minute."""
_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING"})
_HANDS_OFF = ("UNKNOWN", "POWER", "REBOOT", "MAINT", "FUTURE", "PLANNED")


@runtime_checkable
class JobNotes(Protocol):
    """A backend that can write an operator's note onto a job."""

    def note(self, job_id: int, words: str) -> None:
        """Write it."""
        ...


class Act(enum.StrEnum):
    """What the reporter does to the node's state."""

    NOTHING = "nothing"
    DRAIN = "drain"
    """The node is in service and our fault says that it must not be."""
    EXPLAIN = "explain"
    """Slurm drained it with its own text after our fault: put our reason there."""
    CLOSE = "close"
    """The node is back in service: our fault is over."""


@dataclass(frozen=True, slots=True)
class Move:
    """An act and why."""

    act: Act
    why: str


def plan(node: NodeInfo, fault: OpenFault | None, boot_id: str | None) -> Move:
    """What to do, from what Slurm shows and what was measured. Pure.

    Args:
        node: This node as slurmctld sees it.
        fault: The open fault, also one from before a reboot.
        boot_id: Of this boot; a fault of another boot explains a drain, and drains nothing by itself.
    """
    drained = bool(node.states & _DRAINED)
    if any(s.startswith(_HANDS_OFF) for s in node.states):
        return Move(Act.NOTHING, f"state {'+'.join(sorted(node.states))} is left alone")
    if fault is None:
        return Move(Act.NOTHING, "nothing to say")
    if not drained:
        if fault.passes > 0:
            return Move(Act.CLOSE, "the node is in service again and passes")
        if fault.boot_id != boot_id:
            return Move(Act.NOTHING, "the fault is from before the reboot; the next round of checks decides")
        return Move(Act.DRAIN, f"{fault.check} found a fault and the node is in service")
    text = node.reason.split(" : ", 1)[0].strip()
    if text in SLURM_TEXTS:
        if node.reason_time_s is not None and node.reason_time_s >= fault.at_s - _SLACK_S:
            return Move(Act.EXPLAIN, f"'{text}' is Slurm's word for our fault")
        return Move(Act.NOTHING, f"'{text}' is older than our fault")
    if parse_reason(node.reason) is not None:
        return Move(Act.NOTHING, "drained with a reason of ours already")
    return Move(Act.NOTHING, "drained by somebody else, whose reason stays")


def report_node(name: str, slurm: SlurmAdmin, memory: Memory, boot_id: str | None) -> Move:
    """Read, plan, re-read, act, and write the node's report and the jobs' notes.

    Slurm has no compare-and-set, so the node is read again right before its reason is written, and
    any difference ends in nothing done.

    Raises:
        KinemillError: Slurm did not answer; the next timer tries again.
    """
    fault = memory.open_fault()
    told, age_s = memory.told()
    if fault is None and not memory.notes() and told == _report(None, boot_id) and 0 <= age_s < _TELL_AGAIN_S:
        return Move(Act.NOTHING, "nothing new to tell")
    (before,) = slurm.nodes([name])
    move = plan(before, fault, boot_id)
    if move.act in (Act.DRAIN, Act.EXPLAIN) and fault is not None:
        (now,) = slurm.nodes([name])
        if (now.states, now.reason, now.reason_time_s) != (before.states, before.reason, before.reason_time_s):
            return Move(Act.NOTHING, "the node changed while we looked; the next pass decides")
        slurm.drain(name, reason_of(fault))
    elif move.act is Act.CLOSE and fault is not None:
        with memory.turn():
            now_open = memory.open_fault()
            if now_open is None or now_open.passes > 0:  # a hook may have found it again meanwhile
                memory.close()
                fault = None
    if _tell(name, slurm, before, _report(fault, boot_id)):
        memory.keep_told(_report(fault, boot_id))
    _bring_notes(slurm, memory)
    return move


def _report(fault: OpenFault | None, boot_id: str | None) -> str:
    """The node's report as it stands in Slurm's `Extra`."""
    report = NodeReport(
        event=fault.event if fault else "",
        boot=boot_id or "",
        passes=fault.passes if fault else 0,
        ts=fault.last_pass_s if fault else 0,
    )
    return dumps(report)


def _tell(name: str, slurm: SlurmAdmin, before: NodeInfo, text: str) -> bool:
    """Write the report where it differs; whether it stands there now."""
    try:
        if text not in (before.extra, before.comment):
            slurm.set_extra(name, text)
    except KinemillError as exc:
        log.warning("the report did not reach the controller: %s", exc)
        return False
    return True


def _bring_notes(slurm: SlurmAdmin, memory: Memory) -> None:
    """Notes for jobs. Accounting learns of a job's end late, so a refused note waits a while before it is dropped."""
    waiting = memory.notes()
    if not waiting or not isinstance(slurm, JobNotes):
        return
    for job_id, text, waited_s in waiting:
        try:
            slurm.note(job_id, text)
        except KinemillError as exc:
            if exc.transient or waited_s < _NOTE_WAITS_S:
                log.info("the note for job %d waits: %s", job_id, exc)
                continue
            log.warning("the note for job %d is dropped: %s", job_id, exc)
        with memory.turn():
            memory.drop_note(job_id)
