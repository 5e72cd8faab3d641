"""The verdict of a run: decided here, written for the reporter to act on. Never talks to Slurm."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kinemill.agents.files import read_json, write_json
from kinemill.agents.state import OpenFault
from kinemill.contracts.fleet import DrainEvent, format_reason
from kinemill.errors import ContractError, KinemillError
from kinemill.records import decode, encode

__all__ = ["StoredVerdict", "read_verdict", "reason_of", "write_verdict"]

NAME = "verdict.json"


@dataclass(frozen=True, slots=True)
class StoredVerdict:
    """What the last run that matters to Slurm found; root's file in the run folder."""

    event: str
    """8 hex digits, or empty where nothing drains."""
    reason: str
    """The drain reason to show, or empty."""
    context: str
    job_id: int | None
    boot_id: str | None
    at_s: int
    seconds: float
    findings: tuple[str, ...] = ()
    """`check status code detail` of everything that a person should see."""
    notes: dict[str, str] = field(default_factory=dict)
    """Job note for application-caused faults."""
    version: int = 1


def reason_of(fault: OpenFault) -> str:
    """The drain reason for a fault.

    Raises:
        ContractError: A check or code that the grammar does not allow.
    """
    return format_reason(DrainEvent(fault.check, fault.letter, fault.code, fault.event, fault.detail))


def write_verdict(run_dir: Path, verdict: StoredVerdict) -> None:
    """Replace the verdict file."""
    write_json(run_dir, NAME, encode(verdict))


def read_verdict(run_dir: Path) -> StoredVerdict | None:
    """The verdict, or None where there is none that root wrote and that makes sense."""
    data: Any = read_json(run_dir, NAME)
    if data is None:
        return None
    try:
        return decode(StoredVerdict, data, where=str(run_dir / NAME))
    except (ContractError, KinemillError):
        return None
