"""The states of an episode in the catalog, and which may follow which."""

from __future__ import annotations

import enum

__all__ = ["EPISODE_TRANSITIONS", "EpisodeState", "RunStatus", "may_follow"]


class EpisodeState(enum.StrEnum):
    """Where an episode stands; the database enforces `EPISODE_TRANSITIONS` by trigger."""

    INGESTED = "ingested"
    """Its object is written and its receipt recorded."""
    VALIDATED = "validated"
    """The post-gate passed and the object was read back."""
    PUBLISHED = "published"
    """Curation may use it."""
    QUARANTINED = "quarantined"
    """Something is wrong; the reason is recorded and nothing was deleted."""
    RETIRED = "retired"
    """No longer offered to new manifests; final."""


EPISODE_TRANSITIONS: frozenset[tuple[EpisodeState, EpisodeState]] = frozenset(
    {
        (EpisodeState.INGESTED, EpisodeState.VALIDATED),
        (EpisodeState.VALIDATED, EpisodeState.PUBLISHED),
        (EpisodeState.PUBLISHED, EpisodeState.RETIRED),
        (EpisodeState.VALIDATED, EpisodeState.RETIRED),
        (EpisodeState.INGESTED, EpisodeState.QUARANTINED),
        (EpisodeState.VALIDATED, EpisodeState.QUARANTINED),
        (EpisodeState.PUBLISHED, EpisodeState.QUARANTINED),
        (EpisodeState.QUARANTINED, EpisodeState.INGESTED),
        (EpisodeState.QUARANTINED, EpisodeState.RETIRED),
    }
)
"""(from, to) pairs; a quarantined episode comes back only through a new ingest."""


def may_follow(old: EpisodeState, new: EpisodeState) -> bool:
    """True where `old` -> `new` is allowed."""
    return (old, new) in EPISODE_TRANSITIONS


class RunStatus(enum.StrEnum):
    """How a run of one batch ended."""

    RUNNING = "running"
    SUCCESS = "success"
    DEGRADED = "degraded"
    """Every critical step succeeded, a non-critical one did not."""
    FAILED = "failed"
