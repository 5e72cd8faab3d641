"""Servers and records for tests of the catalog."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from kinemill.contracts import (
    ChunkTable,
    GroupReceipt,
    Receipt,
    Rendition,
    TopicKind,
    TopicReceipt,
    episode_key,
)
from kinemill.errors import MissingToolError
from kinemill.pipelines.catalog import Catalog, EpisodeCard, uuid7
from kinemill.pipelines.catalog.embedded import PostgresServer, find_binaries
from support.layers import skip

__all__ = ["card_of", "debian_major", "fresh_catalog", "pair", "postgres", "receipt_of", "servers"]

_FAST = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
_STILL = {"autovacuum": "off"}
"""An analysis that the server begins by itself is a transaction, and no export passes an open one."""
_numbers = itertools.count()
_free: dict[str, list[str]] = {}


def debian_major() -> int | None:
    """Major version of Debian's own server here, or None."""
    try:
        return find_binaries(prefer="debian").major
    except MissingToolError:
        return None


def servers() -> list[str]:
    """What `postgres` takes; the parameter list of tests that run on every supported server here."""
    return ["wheel", "debian"]


@contextmanager
def postgres(binaries: str = "wheel", *, folder: Path | None = None, durable: bool = False) -> Iterator[PostgresServer]:
    """A server; unless `durable`, one that a power cut may hurt and that is faster for it."""
    if binaries == "debian" and debian_major() is None:
        skip("Debian's PostgreSQL is not installed", run="apt-get install postgresql-15, then make test")
    with PostgresServer(folder, binaries=binaries, settings=_STILL if durable else _STILL | _FAST) as server:
        yield server


@contextmanager
def fresh_catalog(server: PostgresServer) -> Iterator[Catalog]:
    """An empty, migrated catalog in a database of its own; emptied databases are used again."""
    free = _free.setdefault(str(server.data), [])
    if free:
        name = free.pop()
    else:
        name = f"t{next(_numbers)}"
        server.create_database(name)
    with Catalog(server.url_of(name)) as catalog:
        catalog.upgrade()
        yield catalog
        usable = catalog.status().up_to_date
    if usable:
        _empty(server.url_of(name))
        free.append(name)


def _empty(url: str) -> None:
    """Empty every table, past the triggers that forbid just that."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("set session_replication_role = replica")
        names = connection.execute("""
            select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('kinemill', 'public')
            and tablename not in ('alembic_version', 'identity', 'episode_transition')
        """).fetchall()
        every = ", ".join(row[0] for row in names)
        connection.execute(f"truncate {every} restart identity cascade".encode())


def receipt_of(
    episode_id: str, *, seed: int = 0, profile: str = "vla", chunks: int = 8, cameras: int = 2, seconds: float = 4.0
) -> Receipt:
    """A receipt that is right in itself; its file exists nowhere."""
    rng = random.Random(f"{episode_id}{seed}{profile}")
    second = 10**9
    span = int(seconds * second) // chunks
    frames = round(seconds * 30)

    def group(name: str, start: int, topics: tuple[TopicReceipt, ...]) -> GroupReceipt:
        lengths = tuple(rng.randrange(2_000, 4_000) for _ in range(chunks))
        offsets = tuple(itertools.accumulate(lengths[:-1], initial=start))
        table = ChunkTable(
            offset=offsets,
            length=lengths,
            t_first_ns=tuple(i * span for i in range(chunks)),
            t_last_ns=tuple((i + 1) * span - 1 for i in range(chunks)),
            messages=tuple(sum(t.messages for t in topics) // chunks for _ in range(chunks)),
            crc32=tuple(rng.getrandbits(32) for _ in range(chunks)),
        )
        total = sum(table.messages)
        return GroupReceipt(name, topics, start, sum(lengths), total, 0, chunks * span - 1, table)

    groups = []
    at = 1000
    if cameras:
        video = tuple(
            TopicReceipt(
                f"/cam{i}/image", TopicKind.VIDEO, i + 1, "foxglove.CompressedVideo", "protobuf", frames, 30.0, "h264"
            )
            for i in range(cameras)
        )
        groups.append(group("cameras", at, video))
        at += groups[-1].length
    state = TopicReceipt(
        "/joints", TopicKind.STATE, cameras + 1, "sensor_msgs/msg/JointState", "cdr", frames, 30.0, names=("a", "b")
    )
    groups.append(group("state", at, (state,)))
    at += groups[-1].length
    return Receipt(
        episode_id=episode_id,
        profile=profile,
        size_bytes=at + 500,
        sha256=hashlib.sha256(f"{episode_id}{seed}{profile}".encode()).hexdigest(),
        t_first_ns=0,
        t_last_ns=chunks * span - 1,
        groups=tuple(groups),
        gop_frames=5 if cameras else None,
        writer="test 1",
    )


def card_of(episode_id: str, **other: object) -> EpisodeCard:
    """A card; keywords replace its fields."""
    known: dict[str, object] = {
        "episode_id": episode_id,
        "vendor": "acme",
        "vendor_key": f"ep-{episode_id}",
        "robot": "arm-7",
        "task": "stack",
        "instruction": "stack the red block",
        "language": "en",
        "recorded_at_ns": 1_790_000_000 * 10**9,
    }
    return EpisodeCard(**{**known, **other})  # type: ignore[arg-type]  # a dict of its fields


def pair(
    episode_id: str | None = None, *, seed: int = 0, profile: str = "vla", **other: object
) -> tuple[EpisodeCard, Rendition]:
    """A card and its rendition, ready to be registered."""
    episode = episode_id or uuid7()
    import uuid

    shape = {name: other.pop(name) for name in ("chunks", "cameras", "seconds") if name in other}
    receipt = receipt_of(episode, seed=seed, profile=profile, **shape)  # type: ignore[arg-type]  # as above
    key = episode_key(uuid.UUID(episode), profile, receipt.sha256)
    return card_of(episode, **other), Rendition(episode, profile, key, receipt, etag="e1")
