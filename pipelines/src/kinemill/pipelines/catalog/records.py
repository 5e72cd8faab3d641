"""What goes into the catalog and what comes out of it, as plain records."""

from __future__ import annotations

import enum
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kinemill.contracts import EpisodeState, Receipt, TopicKind
from kinemill.errors import DataError

__all__ = [
    "EpisodeCard",
    "EpisodeRow",
    "LabelRecord",
    "ManifestRecord",
    "Outcome",
    "QualityRecord",
    "Registered",
    "StepClaim",
    "plain_json",
    "plain_text",
    "reference_camera",
    "uuid7",
]


@dataclass(frozen=True, slots=True)
class EpisodeCard:
    """What is known of an episode beside its bytes."""

    episode_id: str
    """UUID text, version 7 preferred (`uuid7`)."""
    vendor: str
    vendor_key: str
    """The vendor's own name of it; with `vendor` unique for ever."""
    robot: str
    task: str = ""
    instruction: str = ""
    language: str = ""
    split: str = "train"
    site: str = ""
    recorded_at_ns: int | None = None
    """Wall time when the recording began, ns since the epoch; None where unknown."""
    frames: int | None = None
    """Of the reference camera; None means from the receipt."""
    fps: float | None = None
    """Of the reference camera; None means from the receipt."""

    def as_metadata(self) -> dict[str, str]:
        """For `EpisodeWriter(metadata=...)`: what `catalog rebuild --from-store` finds again in the file."""
        found = {name: getattr(self, name) for name in _IN_FILE}
        return {name: str(value) for name, value in found.items() if value not in (None, "")}

    @classmethod
    def from_metadata(cls, episode_id: str, found: Mapping[str, str]) -> EpisodeCard:
        """The card out of a file's `tg.layout` metadata.

        Raises:
            DataError: No vendor, or neither `vendor_key` nor `source`.
        """
        vendor, key = found.get("vendor", ""), found.get("vendor_key") or found.get("source", "")
        if not vendor or not key:
            raise DataError(f"episode {episode_id}: its file names no vendor or no vendor_key; register it by hand")
        numbers: dict[str, Any] = {}
        for name, kind in (("recorded_at_ns", int), ("frames", int), ("fps", float)):
            try:
                numbers[name] = kind(found[name]) if name in found else None
            except ValueError as exc:
                raise DataError(f"episode {episode_id}: metadata {name}={found[name]!r} is no number") from exc
        return cls(
            episode_id,
            vendor,
            key,
            found.get("robot") or "unknown",
            task=found.get("task", ""),
            instruction=found.get("instruction", ""),
            language=found.get("language", ""),
            split=found.get("split") or "train",
            site=found.get("site", ""),
            **numbers,
        )


_IN_FILE = (
    "vendor",
    "vendor_key",
    "robot",
    "task",
    "instruction",
    "language",
    "split",
    "site",
    "recorded_at_ns",
    "frames",
    "fps",
)


class Outcome(enum.StrEnum):
    """What registering one rendition came to."""

    NEW = "new"
    """A new episode."""
    ADDED = "added"
    """A further profile of a known episode."""
    CORRECTED = "corrected"
    """A new object for a profile that had one; the old one is superseded, its object stays."""
    SAME = "same"
    """Known already, byte for byte; nothing was written."""
    DUPLICATE = "duplicate"
    """The vendor's key, or these very bytes, belong to another episode; nothing was written."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What `Catalog.register_episodes` did with one item."""

    episode_id: str
    """The catalog's: for a duplicate that of the episode that was there first."""
    object_key: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class QualityRecord:
    """What one check of a gate said of an episode."""

    episode_id: str
    check: str
    version: int
    passed: bool
    critical: bool = True
    score: float | None = None
    message: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    object_key: str | None = None
    """The rendition that was looked at; None means the episode as such."""


@dataclass(frozen=True, slots=True)
class LabelRecord:
    """A word of a label set for an episode."""

    episode_id: str
    label_set: str
    label: str
    score: float | None = None
    author: str = ""


@dataclass(frozen=True, slots=True)
class ManifestRecord:
    """A published manifest."""

    id: str
    object_key: str
    spec_sha256: str
    sha256: str
    snapshot_id: int
    seed: int
    rows: int
    size_bytes: int
    hours: float
    creator: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """An episode as the catalog knows it."""

    card: EpisodeCard
    state: EpisodeState
    row_version: int
    batch: str
    delivery: str | None
    duration_ns: int
    frames: int
    fps: float
    degraded_steps: tuple[str, ...]
    purged: bool


@dataclass(frozen=True, slots=True)
class StepClaim:
    """The right to execute a step on an input, until the lease ends."""

    batch: str
    step: str
    step_version: int
    input_digest: str
    token: str = ""
    attempt: int = 0


def uuid7() -> str:
    """A version 7 UUID (RFC 9562): 48 bits of milliseconds, 74 random bits."""
    value = (time.time_ns() // 10**6 & (1 << 48) - 1) << 80 | int.from_bytes(os.urandom(10), "big")
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(3 << 62) | 2 << 62
    return str(uuid.UUID(int=value))


def reference_camera(receipt: Receipt) -> tuple[int, float]:
    """(frames, fps) of the fastest camera; (0, 0.0) without cameras.

    Where no nominal rate is known it is measured: (frames - 1) / duration.
    """
    best = (0, 0.0)
    for group in receipt.groups:
        for topic in group.topics:
            if topic.kind is not TopicKind.VIDEO or topic.messages == 0:
                continue
            seconds = (group.t_last_ns - group.t_first_ns) / 1e9
            measured = (topic.messages - 1) / seconds if seconds > 0 and topic.messages > 1 else 1.0
            best = max(best, (topic.messages, topic.rate_hz or measured))
    return best


def plain_text(value: str, what: str) -> str:
    """`value`, if a database can hold it.

    Raises:
        DataError: A NUL or half a surrogate pair in it.
    """
    if "\0" in value:
        raise DataError(f"{what}: a NUL character at {value.index(chr(0))}; the source is broken")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as exc:
        raise DataError(f"{what}: no Unicode text at {exc.start}; decode the source with its own encoding") from exc
    return value


def plain_json(value: Mapping[str, Any], what: str) -> str:
    """JSON text that jsonb can hold.

    Raises:
        DataError: As for `plain_text`, or a value that JSON has no form for.
    """
    try:
        text = json.dumps(value, allow_nan=False, sort_keys=True)
    except (TypeError, ValueError) as exc:
        raise DataError(f"{what}: {exc}") from exc
    plain_text(_unescaped(text), what)
    return text


def _unescaped(text: str) -> str:
    """All strings of a JSON text in a row, as characters."""
    parts: list[str] = []

    def walk(value: Any) -> None:
        if isinstance(value, str):
            parts.append(value)
        elif isinstance(value, dict):
            for key, item in value.items():
                parts.append(key)
                walk(item)
        elif isinstance(value, list):
            for item in value:
                walk(item)

    walk(json.loads(text))
    return "".join(parts)
