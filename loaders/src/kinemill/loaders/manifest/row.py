"""One row of a manifest: everything a reader needs to fetch a sample, without asking anybody."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

from kinemill.contracts import shard_of

__all__ = ["ManifestRow"]


@dataclass(frozen=True, slots=True)
class ManifestRow:
    """The columns of `kinemill.contracts.MANIFEST_COLUMNS`, decoded; plus the key they add up to."""

    episode_id: bytes
    profile: str
    sha256: bytes
    size_bytes: int
    vendor: str
    robot: str
    task: str
    instruction: str
    split: str
    t_first_ns: int
    duration_ns: int
    frames: int
    fps: float
    weight: float
    topics: str
    layout: bytes | None

    @property
    def uuid(self) -> uuid.UUID:
        """The episode's id."""
        return uuid.UUID(bytes=self.episode_id)

    @property
    def key(self) -> str:
        """The object's key: `episodes/<shard>/<episode uuid>/<profile>-<hash12>.mcap`.

        The profile's spelling was checked when the rendition was written, so it is not checked again per sample.
        """
        episode = self.uuid
        return f"episodes/{shard_of(episode)}/{episode}/{self.profile}-{self.sha256[:6].hex()}.mcap"
