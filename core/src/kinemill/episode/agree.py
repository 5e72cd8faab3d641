"""Whether the tellings of where things lie agree: the records themselves, the summary, and `tg.index`.

A checksum proves that bytes are those that were written, not that they were written right: a summary
or an index that lies has a right checksum. So what was seen on the way through the file is held
against all that is told about it.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from kinemill.contracts.episode import GroupReceipt, Receipt
from kinemill.episode import wire
from kinemill.episode.layout import GroupLayout, Layout
from kinemill.episode.scan import Record
from kinemill.episode.source import Cursor

__all__ = ["Finding", "Seen", "SeenChunk", "compare_index", "compare_summary"]

_COUNTED: Final = ("schemas", "channels", "attachments", "metadata records", "chunks")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    text: str


@dataclass(slots=True)
class SeenChunk:
    """What a chunk is, by its own bytes."""

    offset: int
    length: int
    t_first_ns: int
    t_last_ns: int
    crc: int
    raw_size: int
    compression: str
    data_size: int
    counts: Counter[int]
    """channel -> messages"""
    idr_ns: frozenset[int] | None
    """Times of its IDR frames; None where nobody looked at all of them."""
    index_offsets: dict[int, int] = field(default_factory=dict)
    index_length: int = 0


@dataclass(slots=True)
class Seen:
    """What a walk through the file saw."""

    own: bool = False
    live: bool = False
    messages: int = 0
    schemas: dict[int, tuple[str, str, bytes]] = field(default_factory=dict)
    channels: dict[int, tuple[int, str, str, dict[str, str]]] = field(default_factory=dict)
    raw: dict[str, bytes] = field(default_factory=dict)
    """`schema 1`, `channel 1` -> the record"""
    chunks: list[SeenChunk] = field(default_factory=list)
    attachments: dict[tuple[int, str], tuple[int, int, int, int, str]] = field(default_factory=dict)
    """offset, name -> bytes of the record, log time, create time, bytes of data, media type"""
    metadata: dict[tuple[int, str], int] = field(default_factory=dict)
    layout: dict[str, str] = field(default_factory=dict)
    """`tg.layout`"""
    index: Receipt | None = None
    """`tg.index`"""
    summary_at: int = 0
    summary: list[Record] = field(default_factory=list)


# ---- the summary


def compare_summary(seen: Seen) -> Iterator[Finding]:
    """The summary against the records.

    Raises:
        CorruptError: A record of the summary that cannot be read.
    """
    own = seen.own
    chunks: dict[int, Record] = {}
    attachments, metadata = {}, {}
    statistics: Record | None = None
    for record in seen.summary:
        cursor = Cursor(record.body, f"summary record {record.op:#x} at {record.offset}")
        if record.op == wire.Op.CHUNK_INDEX:
            cursor.take(16)
            chunks[cursor.number("Q")] = record
        elif record.op == wire.Op.ATTACHMENT_INDEX:
            offset, length, t_ns, created_ns, size = (cursor.number("Q") for _ in range(5))
            name, media_type = cursor.text(), cursor.text()
            attachments[offset, name] = (length, t_ns, created_ns, size, media_type)
        elif record.op == wire.Op.METADATA_INDEX:
            offset, length = cursor.number("Q"), cursor.number("Q")
            metadata[offset, cursor.text()] = length
        elif record.op == wire.Op.STATISTICS:
            statistics = record
        elif record.op in (wire.Op.SCHEMA, wire.Op.CHANNEL):
            name = "schema" if record.op == wire.Op.SCHEMA else "channel"
            number = cursor.number("H")
            if own and seen.raw.get(f"{name} {number}") != bytes(record.data):
                yield Finding("summary", f"{name} {number} of the summary is not that of the data section")
    if own or chunks:
        yield from _compare_chunks(seen, chunks)
    if (own or attachments) and attachments != seen.attachments:
        yield Finding("summary", "attachment index and attachments differ")
    if (own or metadata) and metadata != seen.metadata:
        yield Finding("summary", "metadata index and metadata records differ")
    if statistics is not None:
        yield from _compare_statistics(seen, statistics)
    elif own:
        yield Finding("summary", "no statistics")
    yield from _compare_offsets(seen)


def _compare_chunks(seen: Seen, listed: dict[int, Record]) -> Iterator[Finding]:
    if set(listed) != {c.offset for c in seen.chunks}:
        yield Finding("summary", f"the chunk index lists {len(listed)} chunks, the file has {len(seen.chunks)}")
    for chunk in seen.chunks:
        record = listed.get(chunk.offset)
        if record is None:
            continue
        expected = wire.chunk_index(
            chunk.t_first_ns,
            chunk.t_last_ns,
            offset=chunk.offset,
            length=chunk.length,
            index_offsets=tuple(chunk.index_offsets.items()),
            index_length=chunk.index_length,
            compression=chunk.compression.encode(),
            data_size=chunk.data_size,
            raw_size=chunk.raw_size,
        )
        if seen.own and expected != bytes(record.data):
            yield Finding("summary", f"the chunk index of the chunk at {chunk.offset} says other than the chunk")
        elif not seen.own and expected[9:41] != bytes(record.body[:32]):
            yield Finding(
                "summary", f"the chunk index of the chunk at {chunk.offset} has other times or another length"
            )


def _compare_statistics(seen: Seen, record: Record) -> Iterator[Finding]:
    cursor = Cursor(record.body, "statistics")
    messages = cursor.number("Q")
    if messages != seen.messages:
        yield Finding("summary", f"statistics say {messages} messages, the file has {seen.messages}")
    if not seen.own:
        return
    told = [cursor.number(code) for code in "HIIII"]
    kinds = [key.split()[0] for key in seen.raw]
    real = [
        kinds.count("schema"),
        kinds.count("channel"),
        len(seen.attachments),
        len(seen.metadata),
        len(seen.chunks),
    ]
    for what, said, n in zip(_COUNTED, told, real, strict=True):
        if said != n:
            yield Finding("summary", f"statistics say {said} {what}, the file has {n}")
    span = (cursor.number("Q"), cursor.number("Q"))
    if span != _span(seen):
        yield Finding("summary", f"statistics say {span[0]}..{span[1]} ns, the chunks cover {_span(seen)}")
    totals: Counter[int] = Counter()
    for chunk in seen.chunks:
        totals.update(chunk.counts)
    pairs = cursor.take(cursor.number("I"))
    listed = dict(struct.iter_unpack("<HQ", pairs[: len(pairs) // 10 * 10]))
    if len(pairs) % 10 or listed != {k: v for k, v in totals.items() if v}:
        yield Finding("summary", "statistics and messages per channel differ")


def _span(seen: Seen) -> tuple[int, int]:
    """First and last log time of all chunks; zeros where there is none."""
    return (
        min((c.t_first_ns for c in seen.chunks), default=0),
        max((c.t_last_ns for c in seen.chunks), default=0),
    )


def _compare_offsets(seen: Seen) -> Iterator[Finding]:
    """SummaryOffset records against the sections that they point to."""
    sections: dict[int, tuple[int, int]] = {}
    told: dict[int, tuple[int, int]] = {}
    for record in seen.summary:
        if record.op == wire.Op.SUMMARY_OFFSET:
            cursor = Cursor(record.body, f"summary offset at {record.offset}")
            op, start, length = cursor.number("B"), cursor.number("Q"), cursor.number("Q")
            if length or seen.own:  # some writers tell of sections that they left out
                told[op] = (start, length)
            continue
        start, length = sections.get(record.op, (record.offset, 0))
        if start + length != record.offset:
            yield Finding("summary", f"records of type {record.op:#x} in the summary do not follow each other")
        sections[record.op] = (start, length + len(record.data))
    if (seen.own or told) and told != sections:
        yield Finding("summary", "summary offsets and the sections of the summary differ")


# ---- tg.index


def compare_index(seen: Seen) -> Iterator[Finding]:
    """`tg.index` and `tg.layout` against the records; of a file of ours."""
    if not seen.own:
        return
    index = seen.index
    if index is None:
        yield Finding("tg_index", "no attachment tg.index")
        return
    found = {c.offset: c for c in seen.chunks}
    listed = 0
    end = 0
    for group, layout in zip(index.groups, Layout.from_receipt(index).groups, strict=True):
        listed += len(group.chunks)
        yield from _compare_topics(seen, group)
        yield from _compare_group(group, layout, found)
        yield from _compare_gops(group, found, live=seen.live)
        if group.chunks.offset and not seen.live:
            if group.offset < end:
                yield Finding("tg_index", f"group {group.name} starts inside the group before it")
            end = group.offset + group.length
    if listed != len(seen.chunks):
        yield Finding("tg_index", f"tg.index lists {listed} chunks, the file has {len(seen.chunks)}")
    topics = [t for group in index.groups for t in group.topics]
    if sorted(t.channel_id for t in topics) != sorted(seen.channels):
        yield Finding("tg_index", f"tg.index has {len(topics)} topics, the file has {len(seen.channels)} channels")
    if (index.t_first_ns, index.t_last_ns) != _span(seen):
        yield Finding(
            "tg_index", f"tg.index says {index.t_first_ns}..{index.t_last_ns} ns, the chunks cover {_span(seen)}"
        )
    lost = [name for name in index.missing if any(t.topic == name and t.messages for t in topics)]
    if lost:
        yield Finding("tg_index", f"tg.index calls {', '.join(lost)} missing, and has messages of it")
    if (index.episode_id, index.profile) != (seen.layout.get("episode_id"), seen.layout.get("profile")):
        yield Finding("tg_index", "tg.index and tg.layout are of different episodes")


def _compare_topics(seen: Seen, group: GroupReceipt) -> Iterator[Finding]:
    for topic in group.topics:
        channel = seen.channels.get(topic.channel_id)
        if channel is None:
            yield Finding("tg_index", f"group {group.name}: no channel {topic.channel_id} for {topic.topic}")
            continue
        schema_id, name, encoding, metadata = channel
        schema = seen.schemas.get(schema_id, ("", "", b""))[0]
        told = (topic.topic, topic.schema, topic.encoding, topic.kind.value, group.name)
        if told != (name, schema, encoding, metadata.get("tg.kind"), metadata.get("tg.group")):
            yield Finding("tg_index", f"group {group.name}: topic {topic.topic} is not as channel {topic.channel_id}")


def _compare_group(group: GroupReceipt, layout: GroupLayout, found: dict[int, SeenChunk]) -> Iterator[Finding]:
    table = group.chunks
    ids = [t.channel_id for t in group.topics]
    for k, offset in enumerate(table.offset):
        chunk = found.get(offset)
        if chunk is None:
            yield Finding("tg_index", f"group {group.name}: no chunk at {offset}")
            continue
        told = (table.length[k], table.t_first_ns[k], table.t_last_ns[k], table.messages[k], table.crc32[k])
        real = (chunk.length, chunk.t_first_ns, chunk.t_last_ns, chunk.counts.total(), chunk.crc)
        counts = None if layout.counts is None else layout.counts[:, k].tolist()
        if told != real or counts != [chunk.counts[i] for i in ids]:
            yield Finding("tg_index", f"group {group.name}: chunk {k} is not as tg.index says")


def _compare_gops(group: GroupReceipt, found: dict[int, SeenChunk], *, live: bool) -> Iterator[Finding]:
    """The GOP table: whole GOPs in each chunk, each from an IDR on (seen with `deep` alone)."""
    if group.gops is None or live:
        return
    table, gops = group.chunks, group.gops
    frames: Counter[int] = Counter()
    for k, t_ns, n in zip(gops.chunk, gops.t_first_ns, gops.frames, strict=True):
        frames[k] += n
        chunk = found.get(table.offset[k])
        if chunk is None:
            continue
        if not chunk.t_first_ns <= t_ns <= chunk.t_last_ns or (chunk.idr_ns is not None and t_ns not in chunk.idr_ns):
            yield Finding("tg_index", f"group {group.name}: no GOP starts at {t_ns} ns in chunk {k}")
    if any(frames[k] != n for k, n in enumerate(table.messages)):
        yield Finding("tg_index", f"group {group.name}: the GOP table does not count the frames that are there")
