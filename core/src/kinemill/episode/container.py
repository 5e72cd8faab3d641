"""The MCAP around the chunks: head, places of chunks, metadata, attachments, summary and footer.

Bytes go out in order and are never looked at again: counted, hashed, and noted where a summary or a receipt needs it.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.chunks import BuiltChunk
from kinemill.episode.hashing import StreamHash
from kinemill.episode.schemas import SchemaText
from kinemill.episode.topics import TopicSpec, codec_of, group_of
from kinemill.errors import StateError

__all__ = ["Container", "Placed"]

ALIGN_FROM: Final = 4 << 20
"""Chunks of this size and more start on `ALIGN_TO` boundaries: a cache page then holds no second chunk's edge."""
ALIGN_TO: Final = 1 << 20


@dataclass(slots=True)
class Placed:
    """One group's chunks once they lie in the file."""

    offset: list[int] = field(default_factory=list)
    length: list[int] = field(default_factory=list)
    t_first: list[int] = field(default_factory=list)
    t_last: list[int] = field(default_factory=list)
    crc: list[int] = field(default_factory=list)
    counts: list[tuple[int, ...]] = field(default_factory=list)
    index: list[tuple[tuple[tuple[int, int], ...], int, bytes, int, int]] = field(default_factory=list)
    """index_at, bytes of the indexes, compression, data size, raw size"""
    gops: list[tuple[int, int, int]] = field(default_factory=list)
    skew_ns: int = 0
    end: int = 0


class Container:
    """One file while it is written.

    Args:
        stream: Only appended to.
        specs: Every topic; its channel id is its place, from 1.
        schemas: Of each topic.
        groups: Names, in file order.
    """

    def __init__(
        self, stream: IO[bytes], specs: Sequence[TopicSpec], schemas: Sequence[SchemaText], groups: Sequence[str]
    ) -> None:
        self.at = 0
        self.placed = {name: Placed() for name in groups}
        self._stream = stream
        self._hash = StreamHash()
        self._schemas, self._channels = _schemas_and_channels(specs, schemas)
        self._metadata: list[bytes] = []
        self._attachments: list[bytes] = []
        self._synced = 0

    def write(self, data: bytes) -> None:
        """Append bytes.

        Raises:
            StateError: The stream took only some of them.
        """
        written = self._stream.write(data)
        if written is not None and written != len(data):
            raise StateError(f"the sink took {written} of {len(data)} bytes")
        self._hash.update(data)
        self.at += len(data)

    def head(self, writer: str) -> None:
        """Magic, header, schemas and channels."""
        self.write(wire.MAGIC)
        self.write(wire.record(wire.Op.HEADER, wire.string("") + wire.string(writer)))
        for record in self._schemas + self._channels:
            self.write(record)

    def metadata(self, name: str, items: Mapping[str, str]) -> None:
        """A map of strings under a name."""
        whole = wire.record(wire.Op.METADATA, wire.string(name) + wire.string_map(items))
        entry = struct.pack("<QQ", self.at, len(whole)) + wire.string(name)
        self._metadata.append(wire.record(wire.Op.METADATA_INDEX, entry))
        self.write(whole)

    def place(self, name: str, chunk: BuiltChunk, record: tuple[bytes, ...], index: bytes) -> None:
        """A chunk of a group.

        Args:
            name: The group.
            chunk: What it is; its own bytes are not looked at.
            record: The Chunk record, in parts.
            index: The message indexes behind it.
        """
        length = sum(len(part) for part in record)
        if length >= ALIGN_FROM and (gap := -self.at % ALIGN_TO):
            self.write(wire.padding(gap if gap >= wire.RECORD_HEAD.size else gap + ALIGN_TO))
        placed = self.placed[name]
        number = len(placed.offset)
        placed.offset.append(self.at)
        placed.length.append(length)
        placed.t_first.append(chunk.t_first_ns)
        placed.t_last.append(chunk.t_last_ns)
        placed.crc.append(chunk.crc)
        placed.counts.append(chunk.counts)
        placed.index.append((chunk.index_at, len(index), chunk.compression, chunk.data_size, chunk.raw_size))
        placed.skew_ns = max(placed.skew_ns, chunk.skew_ns)
        placed.gops += [(number, t, n) for t, n in chunk.gops]
        for part in record:
            self.write(part)
        self.write(index)
        placed.end = self.at

    def attachment(self, name: str, media_type: str, data: bytes, t_ns: int) -> None:
        """A file within the file."""
        body = struct.pack("<QQ", t_ns, t_ns) + wire.string(name) + wire.string(media_type)
        body += struct.pack("<Q", len(data))
        head = wire.RECORD_HEAD.pack(wire.Op.ATTACHMENT, len(body) + len(data) + 4) + body
        entry = struct.pack("<QQQQQ", self.at, len(head) + len(data) + 4, t_ns, t_ns, len(data)) + wire.string(name)
        self._attachments.append(wire.record(wire.Op.ATTACHMENT_INDEX, entry + wire.string(media_type)))
        for part in (head, data, struct.pack("<I", crc32(data, crc32(body)))):  # no copy: it may be large
            self.write(part)

    def sync(self) -> None:
        """Make what was written since the last call durable."""
        if self.at == self._synced:
            return
        self._stream.flush()
        try:
            handle = self._stream.fileno()
        except (AttributeError, OSError):  # a stream that is no file has nothing to sync
            return
        try:
            os.fdatasync(handle)
        except OSError as exc:
            if exc.errno != errno.EINVAL:  # a pipe or a device; all else means that the disk lost what it took
                raise
        self._synced = self.at

    def end(self, totals: Sequence[tuple[int, int]], t_first_ns: int, t_last_ns: int) -> str:
        """End of the data, summary, footer.

        Args:
            totals: (channel id, messages) of each channel with messages.
            t_first_ns: First log time of the file.
            t_last_ns: Last log time.

        Returns:
            sha256 of the whole file, hex.
        """
        self.write(wire.record(wire.Op.DATA_END, struct.pack("<I", self._hash.crc())))
        chunk_indexes = [record for placed in self.placed.values() for record in _chunk_indexes(placed)]
        statistics = struct.pack(
            "<QHIIIIQQI",
            sum(n for _, n in totals),
            len(self._schemas),
            len(self._channels),
            len(self._attachments),
            len(self._metadata),
            len(chunk_indexes),
            t_first_ns,
            t_last_ns,
            10 * len(totals),
        ) + b"".join(struct.pack("<HQ", *pair) for pair in sorted(totals))
        sections = [
            (wire.Op.SCHEMA, self._schemas),
            (wire.Op.CHANNEL, self._channels),
            (wire.Op.STATISTICS, [wire.record(wire.Op.STATISTICS, statistics)]),
            (wire.Op.METADATA_INDEX, self._metadata),
            (wire.Op.ATTACHMENT_INDEX, self._attachments),
            (wire.Op.CHUNK_INDEX, chunk_indexes),
        ]
        start = at = self.at
        body, offsets = [], []
        for op, items in sections:
            if items:
                section = b"".join(items)
                offsets.append(wire.record(wire.Op.SUMMARY_OFFSET, struct.pack("<BQQ", op, at, len(section))))
                body.append(section)
                at += len(section)
        whole = b"".join(body + offsets) + wire.RECORD_HEAD.pack(wire.Op.FOOTER, 20) + struct.pack("<QQ", start, at)
        self.write(whole + struct.pack("<I", crc32(whole)) + wire.MAGIC)
        return self._hash.hexdigest()

    def stop(self) -> None:
        """Give up: end the thread that hashes."""
        self._hash.stop()


def _schemas_and_channels(specs: Sequence[TopicSpec], texts: Sequence[SchemaText]) -> tuple[list[bytes], list[bytes]]:
    ids: dict[SchemaText, int] = {}
    schemas, channels = [], []
    for i, (spec, text) in enumerate(zip(specs, texts, strict=True)):
        if text not in ids and (text.name or text.data):
            ids[text] = len(ids) + 1
            body = struct.pack("<H", ids[text]) + wire.string(text.name) + wire.string(text.encoding)
            body += struct.pack("<I", len(text.data)) + text.data
            schemas.append(wire.record(wire.Op.SCHEMA, body))
        known = {
            "tg.group": group_of(spec),
            "tg.kind": spec.kind.value,
            "rate_hz": "" if spec.rate_hz is None else f"{spec.rate_hz:g}",
            "units": spec.units or "",
            "codec": codec_of(spec) or "",
        }
        body = struct.pack("<HH", i + 1, ids.get(text, 0)) + wire.string(spec.topic)
        body += wire.string(text.message_encoding)
        extra = {k: v for k, v in spec.metadata.items() if not known.get(k)}
        body += wire.string_map({**extra, **{k: v for k, v in known.items() if v}})
        channels.append(wire.record(wire.Op.CHANNEL, body))
    return schemas, channels


def _chunk_indexes(placed: Placed) -> list[bytes]:
    records = []
    for i, (index_at, index_size, compression, data_size, raw_size) in enumerate(placed.index):
        behind = placed.offset[i] + placed.length[i]
        records.append(
            wire.chunk_index(
                placed.t_first[i],
                placed.t_last[i],
                offset=placed.offset[i],
                length=placed.length[i],
                index_offsets=tuple((channel, behind + at) for channel, at in index_at),
                index_length=index_size,
                compression=compression,
                data_size=data_size,
                raw_size=raw_size,
            )
        )
    return records
