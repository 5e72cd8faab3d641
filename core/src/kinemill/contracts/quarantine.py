"""Why something was put aside, in words that a person understands."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["QuarantineRecord"]


@dataclass(frozen=True, slots=True)
class QuarantineRecord:
    """One file, episode or sample that was put aside; nothing was deleted.

    Written by gates (catalog) and by loaders (JSON lines, one file a rank).
    """

    source: str
    """The file, object key or episode as its owner would name it."""
    stage: str
    """Where it was noticed: `pre_gate`, `convert`, `post_gate`, `loader`, ..."""
    code: str
    """Stable short code, such as `truncated` or `no_action`."""
    message: str
    """What is wrong, where, and what to do."""
    episode_id: str | None = None
    batch: str | None = None
    at_ns: int = 0
    evidence: dict[str, str] = field(default_factory=dict)
    version: int = 1
