"""What a running ingest tells whoever watches it."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Event"]


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened.

    `kind` is one of: plan, skip (done before), wait (for another run), start, step (a step began), progress (pictures
    written), episode (published), quarantine, done (a recording is through), failed (a fault of ours; will be tried
    again), end.
    """

    kind: str
    source: str = ""
    """Key of the recording."""
    text: str = ""
    data: dict[str, int | float | str] = field(default_factory=dict)
