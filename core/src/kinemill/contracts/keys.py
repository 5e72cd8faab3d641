"""Where an object lies in the store: immutable keys that carry their content's hash."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass

from kinemill.errors import ContractError

__all__ = ["EpisodeKey", "episode_key", "layout_key", "parse_episode_key", "shard_of"]

_PROFILE = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(
    r"episodes/(?P<shard>[0-9a-f]{2})/(?P<id>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"/(?P<profile>[a-z][a-z0-9_]{0,31})-(?P<hash12>[0-9a-f]{12})\.mcap"
)


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """The parts of an episode's object key."""

    episode_id: uuid.UUID
    profile: str
    hash12: str
    """The first 12 hex digits of the file's sha256."""


def shard_of(episode_id: uuid.UUID) -> str:
    """The shard folder: the id's *last* two hex digits, since a version 7 id starts with its time."""
    return episode_id.hex[-2:]


def episode_key(episode_id: uuid.UUID, profile: str, sha256: str) -> str:
    """`episodes/<shard>/<episode uuid>/<profile>-<hash12>.mcap`.

    Args:
        episode_id: The episode; its renditions share the folder.
        profile: `vla`, `world` or a site's own, lower case.
        sha256: Of the whole file, 64 hex digits.

    Raises:
        ContractError: A profile or hash that does not fit.
    """
    if not _PROFILE.fullmatch(profile):
        raise ContractError(f"profile {profile!r}: lower-case letters, digits and _ only, at most 32")
    if not _SHA256.fullmatch(sha256):
        raise ContractError(f"sha256 {sha256!r}: expected 64 lower-case hex digits")
    return f"episodes/{shard_of(episode_id)}/{episode_id}/{profile}-{sha256[:12]}.mcap"


def layout_key(key: str) -> str:
    """Where an episode's packed layout lies if a manifest does not carry it: beside the object `key`."""
    return key.removesuffix(".mcap") + ".layout"


def parse_episode_key(key: str) -> EpisodeKey:
    """The parts of `key`.

    Raises:
        ContractError: Not an episode key, or its shard is not the id's.
    """
    match = _KEY.fullmatch(key)
    if match is None:
        raise ContractError(f"{key!r} is not an episode key (episodes/<shard>/<uuid>/<profile>-<hash12>.mcap)")
    episode_id = uuid.UUID(match["id"])
    if shard_of(episode_id) != match["shard"]:
        raise ContractError(f"{key!r}: shard {match['shard']} is not the id's last two digits {shard_of(episode_id)}")
    return EpisodeKey(episode_id, match["profile"], match["hash12"])
