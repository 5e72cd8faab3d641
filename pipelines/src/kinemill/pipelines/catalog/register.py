"""Registering episodes: a batch in a fixed number of statements, whatever its size."""

from __future__ import annotations

import hashlib
import uuid
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from kinemill import records as plain
from kinemill.contracts import Receipt, Rendition, episode_key
from kinemill.errors import ConflictError, DataError
from kinemill.pipelines.catalog.records import EpisodeCard, Outcome, Registered, plain_text, reference_camera

__all__ = ["pack_receipt", "register", "unpack_receipt"]

_ZLIB_LEVEL = 3


def pack_receipt(receipt: Receipt) -> bytes:
    """Canonical JSON, deflated."""
    return zlib.compress(plain.dumps(receipt).encode(), _ZLIB_LEVEL)


def unpack_receipt(data: bytes) -> Receipt:
    """What `pack_receipt` was given."""
    return plain.loads(Receipt, zlib.decompress(data), where="receipt")


@dataclass(frozen=True, slots=True)
class _Item:
    """One rendition, checked and ready to be written."""

    card: EpisodeCard
    rendition: Rendition
    id: uuid.UUID
    topics: str
    layout: bytes
    frames: int
    fps: float

    @property
    def sha256(self) -> bytes:
        return bytes.fromhex(self.rendition.receipt.sha256)


def _prepare(card: EpisodeCard, rendition: Rendition) -> _Item:
    from kinemill.episode.layout import Layout

    receipt = rendition.receipt
    where = f"episode {card.episode_id!a} ({card.vendor!a}, {card.vendor_key!a})"
    try:
        episode = uuid.UUID(card.episode_id)
    except ValueError as exc:
        raise DataError(f"{where}: the id is no UUID") from exc
    if not str(episode) == card.episode_id == rendition.episode_id == receipt.episode_id:
        raise DataError(
            f"{where}: card, rendition ({rendition.episode_id}) and receipt ({receipt.episode_id}) disagree"
        )
    wanted = episode_key(episode, receipt.profile, receipt.sha256)
    if rendition.key != wanted or rendition.profile != receipt.profile:
        raise DataError(f"{where}: key {rendition.key} is not its content's ({wanted})")
    for name in ("vendor", "vendor_key", "robot", "task", "instruction", "language", "split", "site"):
        plain_text(getattr(card, name), f"{where}: {name}")
    if receipt.t_last_ns <= receipt.t_first_ns:
        raise DataError(f"{where}: it lasts no time ({receipt.t_first_ns} to {receipt.t_last_ns} ns)")
    topics, layout = Layout.from_receipt(receipt).columns()
    plain_text(topics, f"{where}: topics")
    frames, fps = reference_camera(receipt)
    frames = frames if card.frames is None else card.frames
    fps = fps if card.fps is None else card.fps
    return _Item(card, rendition, episode, topics, layout, frames, fps if frames else 0.0)


def _time(ns: int | None) -> datetime | None:
    return None if ns is None else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=ns // 1000)


def register(
    connection: sa.Connection,
    pairs: Sequence[tuple[EpisodeCard, Rendition]],
    *,
    delivery_id: int | None,
    batch: str,
    verified: bool,
) -> list[Registered]:
    """See `Catalog.register_episodes`; runs inside the caller's transaction."""
    items = [_prepare(card, rendition) for card, rendition in pairs]
    if not items:
        return []
    keys = [item.rendition.key for item in items]
    if len(set(keys)) != len(keys):
        raise DataError("the same object twice in one call")
    plain_text(batch, "batch")
    _names(connection, items)
    owners = _owners(connection, items)
    fresh = [item for item in items if str(item.id) not in owners.ids and item.sha256 not in owners.content]
    first: dict[uuid.UUID, _Item] = {}
    for item in fresh:
        if (item.card.vendor, item.card.vendor_key) not in owners.vendor_keys:
            first.setdefault(item.id, item)
    created = _insert_episodes(connection, list(first.values()), delivery_id, batch)
    if len(created) < len(first):
        # Another delivery registered some of them between our look and our insert; it has committed by now.
        owners = _owners(connection, items)
    outcomes = {item.rendition.key: _outcome(item, owners, created) for item in items}
    for item in items:
        if outcomes[item.rendition.key].outcome is Outcome.NEW and first[item.id] is not item:
            outcomes[item.rendition.key] = Registered(str(item.id), item.rendition.key, Outcome.ADDED)
    write = [i for i in items if outcomes[i.rendition.key].outcome not in (Outcome.SAME, Outcome.DUPLICATE)]
    if write:
        _insert_renditions(connection, write, verified=verified)
    return [outcomes[key] for key in keys]


def _names(connection: sa.Connection, items: Sequence[_Item]) -> None:
    """Vendors, robots, tasks and topic tables that are new, in order of name so that two batches cannot deadlock."""
    topics = sorted({item.topics for item in items})
    connection.execute(
        sa.text("""
            with v as (insert into kinemill.vendor (name)
                select unnest(cast(:vendors as text[])) on conflict do nothing),
                 r as (insert into kinemill.robot (name) select unnest(cast(:robots as text[])) on conflict do nothing),
                 t as (insert into kinemill.task (name) select unnest(cast(:tasks as text[])) on conflict do nothing)
            insert into kinemill.topic_set (sha256, topics)
                select * from unnest(cast(:sha as bytea[]), cast(:topics as text[])) on conflict do nothing
        """),
        {
            "vendors": sorted({item.card.vendor for item in items}),
            "robots": sorted({item.card.robot for item in items}),
            "tasks": sorted({item.card.task for item in items}),
            "sha": [hashlib.sha256(text.encode()).digest() for text in topics],
            "topics": topics,
        },
    )


@dataclass(frozen=True, slots=True)
class _Owners:
    """What the catalog knows already of a batch."""

    ids: Mapping[str, tuple[str, str]]
    """Episode id to (vendor, vendor_key)."""
    vendor_keys: Mapping[tuple[str, str], str]
    """(vendor, vendor_key) to episode id."""
    content: Mapping[bytes, str]
    """sha256 of a current rendition to episode id."""
    keys: frozenset[str]
    """Object keys that exist."""
    profiles: frozenset[tuple[str, str]]
    """(episode id, profile) with a current rendition."""


def _owners(connection: sa.Connection, items: Sequence[_Item]) -> _Owners:
    episodes = connection.execute(
        sa.text("""
            select e.id::text, v.name, e.vendor_key from kinemill.episode e join kinemill.vendor v on v.id = e.vendor_id
            where e.id = any(cast(:ids as uuid[]))
            union
            select e.id::text, v.name, e.vendor_key
            from unnest(cast(:vendors as text[]), cast(:keys as text[])) u (vendor, vendor_key)
            join kinemill.vendor v on v.name = u.vendor
            join kinemill.episode e on e.vendor_id = v.id and e.vendor_key = u.vendor_key
        """),
        {
            "ids": [item.id for item in items],
            "vendors": [item.card.vendor for item in items],
            "keys": [item.card.vendor_key for item in items],
        },
    ).all()
    renditions = connection.execute(
        sa.text("""
            select r.episode_id::text, r.profile, r.object_key, r.sha256, r.current from kinemill.rendition r
            where r.episode_id = any(cast(:ids as uuid[])) or (r.current and r.sha256 = any(cast(:sha as bytea[])))
        """),
        {"ids": [item.id for item in items], "sha": [item.sha256 for item in items]},
    ).all()
    return _Owners(
        ids={i: (vendor, key) for i, vendor, key in episodes},
        vendor_keys={(vendor, key): i for i, vendor, key in episodes},
        content={bytes(row.sha256): row.episode_id for row in renditions if row.current},
        keys=frozenset(row.object_key for row in renditions),
        profiles=frozenset((row.episode_id, row.profile) for row in renditions if row.current),
    )


def _outcome(item: _Item, owners: _Owners, created: set[uuid.UUID]) -> Registered:
    me, key = str(item.id), item.rendition.key
    named = (item.card.vendor, item.card.vendor_key)
    if key in owners.keys:
        return Registered(me, key, Outcome.SAME)
    owner = owners.content.get(item.sha256)
    if owner is not None:
        # The same bytes under another profile's name, or of another episode: one object is enough.
        return Registered(owner, key, Outcome.DUPLICATE)
    if item.id in created:
        return Registered(me, key, Outcome.NEW)
    if (holder := owners.vendor_keys.get(named, me)) != me:
        return Registered(holder, key, Outcome.DUPLICATE)
    if me in owners.ids and owners.ids[me] != named:
        raise DataError(f"episode {me} is {'/'.join(owners.ids[me])} in the catalog, not {'/'.join(named)}")
    if me not in owners.ids:
        raise ConflictError(f"episode {me} ({'/'.join(named)}): registered and lost in a race; run it again")
    return Registered(me, key, Outcome.CORRECTED if (me, item.rendition.profile) in owners.profiles else Outcome.ADDED)


def _insert_episodes(
    connection: sa.Connection, items: Sequence[_Item], delivery_id: int | None, batch: str
) -> set[uuid.UUID]:
    if not items:
        return set()
    items = sorted(items, key=lambda item: (item.card.vendor, item.card.vendor_key))
    rows = connection.execute(
        sa.text("""
            insert into kinemill.episode (id, vendor_id, vendor_key, delivery_id, batch, robot_id, task_id, instruction,
                language, split, site, t_first_ns, duration_ns, frames, fps, recorded_at, ended_at)
            select u.id, v.id, u.vendor_key, :delivery_id, :batch, r.id, t.id, u.instruction, u.language, u.split,
                u.site,
                u.t_first_ns, u.duration_ns, u.frames, u.fps, u.recorded_at, u.ended_at
            from unnest(cast(:id as uuid[]), cast(:vendor as text[]), cast(:vendor_key as text[]),
                cast(:robot as text[]), cast(:task as text[]), cast(:instruction as text[]), cast(:language as text[]),
                cast(:split as text[]), cast(:site as text[]), cast(:t_first_ns as bigint[]),
                cast(:duration_ns as bigint[]), cast(:frames as integer[]), cast(:fps as real[]),
                cast(:recorded_at as timestamptz[]), cast(:ended_at as timestamptz[]))
                u (id, vendor, vendor_key, robot, task, instruction, language, split, site, t_first_ns, duration_ns,
                   frames, fps, recorded_at, ended_at)
            join kinemill.vendor v on v.name = u.vendor
            join kinemill.robot r on r.name = u.robot
            join kinemill.task t on t.name = u.task
            order by v.id, u.vendor_key
            on conflict do nothing returning id
        """),
        {
            "delivery_id": delivery_id,
            "batch": batch,
            "id": [item.id for item in items],
            **{
                name: [getattr(item.card, name) for item in items]
                for name in ("vendor", "vendor_key", "robot", "task", "instruction", "language", "split", "site")
            },
            "t_first_ns": [item.rendition.receipt.t_first_ns for item in items],
            "duration_ns": [item.rendition.receipt.t_last_ns - item.rendition.receipt.t_first_ns for item in items],
            "frames": [item.frames for item in items],
            "fps": [item.fps for item in items],
            "recorded_at": [_time(item.card.recorded_at_ns) for item in items],
            "ended_at": [_ended(item) for item in items],
        },
    )
    return set(rows.scalars())


def _ended(item: _Item) -> datetime | None:
    if item.card.recorded_at_ns is None:
        return None
    receipt = item.rendition.receipt
    duration_ns = max(1000, receipt.t_last_ns - receipt.t_first_ns)
    return _time(item.card.recorded_at_ns + duration_ns)


def _insert_renditions(connection: sa.Connection, items: Sequence[_Item], *, verified: bool) -> None:
    connection.execute(
        sa.text("""
            update kinemill.rendition r set current = false
            from unnest(cast(:ids as uuid[]), cast(:profiles as text[])) u (id, profile)
            where r.episode_id = u.id and r.profile = u.profile and r.current
        """),
        {"ids": [item.id for item in items], "profiles": [item.rendition.profile for item in items]},
    )
    connection.execute(
        sa.text("""
            with made as (
                insert into kinemill.rendition (episode_id, profile, object_key, sha256, size_bytes, etag, gop_frames,
                    topic_set_id, layout, verified_at)
                select u.episode_id, u.profile, u.object_key, u.sha256, u.size_bytes, u.etag, u.gop_frames, t.id,
                    u.layout, case when :verified then clock_timestamp() end
                from unnest(cast(:episode_id as uuid[]), cast(:profile as text[]), cast(:object_key as text[]),
                    cast(:sha256 as bytea[]), cast(:size_bytes as bigint[]), cast(:etag as text[]),
                    cast(:gop_frames as integer[]), cast(:topics as bytea[]), cast(:layout as bytea[]))
                    u (episode_id, profile, object_key, sha256, size_bytes, etag, gop_frames, topics, layout)
                join kinemill.topic_set t on t.sha256 = u.topics
                returning id, object_key)
            insert into kinemill.rendition_receipt (rendition_id, receipt)
            select made.id, u.receipt
            from unnest(cast(:object_key as text[]), cast(:receipt as bytea[])) u (object_key, receipt)
            join made on made.object_key = u.object_key
        """),
        {
            "verified": verified,
            "episode_id": [item.id for item in items],
            "profile": [item.rendition.profile for item in items],
            "object_key": [item.rendition.key for item in items],
            "sha256": [item.sha256 for item in items],
            "size_bytes": [item.rendition.receipt.size_bytes for item in items],
            "etag": [item.rendition.etag for item in items],
            "gop_frames": [item.rendition.receipt.gop_frames for item in items],
            "topics": [hashlib.sha256(item.topics.encode()).digest() for item in items],
            "layout": [item.layout for item in items],
            "receipt": [pack_receipt(item.rendition.receipt) for item in items],
        },
    )
    groups: list[tuple[Any, ...]] = [
        (i.rendition.key, g.name, g.offset, g.offset + g.length, g.messages, g.t_first_ns, g.t_last_ns)
        for i in items
        for g in i.rendition.receipt.groups
    ]
    names = ("object_key", "name", "first", "behind", "messages", "t_first_ns", "t_last_ns")
    connection.execute(
        sa.text("""
            insert into kinemill.episode_group (rendition_id, size_bytes, name, byte_range, messages, t_first_ns,
                t_last_ns)
            select r.id, r.size_bytes, u.name, int8range(u.first, u.behind), u.messages, u.t_first_ns, u.t_last_ns
            from unnest(cast(:object_key as text[]), cast(:name as text[]), cast(:first as bigint[]),
                cast(:behind as bigint[]), cast(:messages as bigint[]), cast(:t_first_ns as bigint[]),
                cast(:t_last_ns as bigint[])) u (object_key, name, first, behind, messages, t_first_ns, t_last_ns)
            join kinemill.rendition r on r.object_key = u.object_key
        """),
        {name: [group[at] for group in groups] for at, name in enumerate(names)},
    )
