"""Find out where an object's chunks lie when nobody told: from `tg.index`, or a stock MCAP's summary.

Two requests for a file of ours (its tail, and the index if that is not in it), two or three for a
stock one. Offsets and lengths from the file are checked against its size before they are used.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np

from kinemill.contracts.episode import Receipt, TopicKind, TopicReceipt
from kinemill.contracts.store import Store
from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.index import read_index
from kinemill.episode.layout import GroupLayout, Layout
from kinemill.episode.schemas import JOINT_STATE, guess_kind
from kinemill.errors import CorruptError, LimitError, TruncatedError, UnsupportedError

__all__ = ["Summary", "find_layout", "look_at_stock", "read_receipt", "read_summary", "records_of"]

TAIL: Final = 64 << 10
_FOOTER: Final = 9 + 20 + 8
_MAX_SUMMARY: Final = 512 << 20
_INDEX_NAME: Final = "tg.index"


class Cursor:
    """Reads fields of a record's body; a length that passes the end is an error, never a read."""

    __slots__ = ("_at", "_data", "_where")

    def __init__(self, data: memoryview, where: str) -> None:
        self._data = data
        self._at = 0
        self._where = where

    def number(self, code: str) -> int:
        """One little-endian integer by its struct code."""
        size = struct.calcsize("<" + code)
        return int(struct.unpack("<" + code, self.take(size))[0])

    def take(self, size: int) -> memoryview:
        """So many bytes."""
        if size > len(self._data) - self._at:
            raise CorruptError(f"{self._where}: a field of {size} bytes, {len(self._data) - self._at} are left")
        self._at += size
        return self._data[self._at - size : self._at]

    def text(self) -> str:
        """A length-prefixed string."""
        try:
            return str(self.take(self.number("I")), "utf-8")
        except UnicodeDecodeError as exc:
            raise CorruptError(f"{self._where}: a string that is not UTF-8") from exc

    def strings(self) -> dict[str, str]:
        """A map of strings."""
        inner = Cursor(self.take(self.number("I")), self._where)
        found = {}
        while inner._at < len(inner._data):
            key = inner.text()
            found[key] = inner.text()
        return found


@dataclass(frozen=True, slots=True)
class ChunkEntry:
    """One ChunkIndex record."""

    offset: int
    length: int
    t_first_ns: int
    t_last_ns: int
    channels: tuple[int, ...]


@dataclass(slots=True)
class Summary:
    """What a file's summary section says."""

    size_bytes: int
    summary_start: int
    schemas: dict[int, tuple[str, str, bytes]] = field(default_factory=dict)
    """id -> name, encoding, data"""
    channels: dict[int, tuple[int, str, str, dict[str, str]]] = field(default_factory=dict)
    """id -> schema id, topic, message encoding, metadata"""
    chunks: list[ChunkEntry] = field(default_factory=list)
    attachments: dict[str, tuple[int, int]] = field(default_factory=dict)
    """name -> offset, length"""
    statistics: dict[int, int] | None = None
    """channel id -> messages"""
    counted: tuple[int, int, int] | None = None
    """Messages, channels and chunks of the file, by its statistics."""


def records_of(data: memoryview, where: str) -> Iterator[tuple[int, memoryview]]:
    """(opcode, body) of each record in a section.

    Raises:
        CorruptError: A record that passes the end.
    """
    at = 0
    while at < len(data):
        if len(data) - at < 9:
            raise CorruptError(f"{where}: {len(data) - at} bytes behind the last record")
        op, length = wire.RECORD_HEAD.unpack_from(data, at)
        if length > len(data) - at - 9:
            raise CorruptError(f"{where}: a record of {length} bytes at {at}, {len(data) - at - 9} are left")
        yield op, data[at + 9 : at + 9 + length]
        at += 9 + length


def parse_schema(body: memoryview, where: str) -> tuple[int, tuple[str, str, bytes]]:
    """id, (name, encoding, data) of a Schema record."""
    cursor = Cursor(body, where)
    number = cursor.number("H")
    name, encoding = cursor.text(), cursor.text()
    return number, (name, encoding, bytes(cursor.take(cursor.number("I"))))


def parse_channel(body: memoryview, where: str) -> tuple[int, tuple[int, str, str, dict[str, str]]]:
    """id, (schema id, topic, message encoding, metadata) of a Channel record."""
    cursor = Cursor(body, where)
    number, schema = cursor.number("H"), cursor.number("H")
    return number, (schema, cursor.text(), cursor.text(), cursor.strings())


def parse_chunk_index(body: memoryview, where: str) -> ChunkEntry:
    """A ChunkIndex record."""
    cursor = Cursor(body, where)
    t_first, t_last, offset, length = (cursor.number("Q") for _ in range(4))
    pairs = cursor.take(cursor.number("I"))
    if len(pairs) % 10:
        raise CorruptError(f"{where}: a chunk index with {len(pairs)} bytes of offsets")
    channels = tuple(struct.unpack_from("<H", pairs, i)[0] for i in range(0, len(pairs), 10))
    if max(t_first, t_last) >> 63:
        raise CorruptError(f"{where}: a chunk index with a time over 2^63 ns")
    return ChunkEntry(offset, length, t_first, t_last, channels)


def read_summary(size: int, read: Callable[[int, int], bytes], where: str) -> tuple[Summary, tuple[int, bytes]]:
    """The summary, and the part of the file's end that was read: (its offset, bytes).

    Args:
        size: Of the file.
        read: `read(start, length)` gives exactly those bytes.
        where: For messages.

    Raises:
        TruncatedError: The file does not end as an MCAP does.
        CorruptError: The summary is damaged.
        UnsupportedError: The file has no summary.
    """
    if size < len(wire.MAGIC) + _FOOTER:
        raise TruncatedError(f"{where}: {size} bytes are no MCAP; it was cut, or is something else")
    base = max(0, size - TAIL)
    tail = read(base, size - base)
    if tail[-8:] != wire.MAGIC:
        raise TruncatedError(
            f"{where}: it ends with {tail[-8:].hex(' ')} and not as an MCAP does: the recording was cut; "
            "`kinemill episode repack` saves every complete chunk"
        )
    op, length, start, offsets, crc = struct.unpack("<BQQQI", tail[-_FOOTER:-8])
    if op != wire.Op.FOOTER or length != 20:
        raise CorruptError(f"{where}: no footer record before the end")
    if start == 0:
        raise UnsupportedError(f"{where}: an MCAP without a summary; `kinemill episode repack` makes one")
    end = size - 8
    if not len(wire.MAGIC) <= start <= end or end - start > _MAX_SUMMARY or (offsets and not start <= offsets <= end):
        raise CorruptError(f"{where}: the footer says that the summary starts at {start} of {size} bytes")
    if start < base:
        tail = read(start, base - start) + tail
        base = start
    body = memoryview(tail)[start - base : len(tail) - 8]
    if crc and crc32(body[:-4]) != crc:
        raise CorruptError(f"{where}: crc of the summary differs; `kinemill episode repack` makes a new one")
    summary = Summary(size, start)
    for code, record in records_of(body, f"{where}: summary"):
        _take(summary, code, record, where)
    return summary, (base, tail)


def _take(summary: Summary, code: int, record: memoryview, where: str) -> None:
    if code == wire.Op.SCHEMA:
        number, schema = parse_schema(record, where)
        summary.schemas[number] = schema
    elif code == wire.Op.CHANNEL:
        number, channel = parse_channel(record, where)
        summary.channels[number] = channel
    elif code == wire.Op.CHUNK_INDEX:
        entry = parse_chunk_index(record, where)
        if (
            entry.offset + entry.length > summary.summary_start
            or entry.length < 9
            or entry.t_last_ns < entry.t_first_ns
        ):
            raise CorruptError(
                f"{where}: a chunk index points to {entry.offset} + {entry.length}, the data ends at "
                f"{summary.summary_start}"
            )
        summary.chunks.append(entry)
    elif code == wire.Op.ATTACHMENT_INDEX:
        cursor = Cursor(record, where)
        offset, length = cursor.number("Q"), cursor.number("Q")
        cursor.take(24)
        if offset + length > summary.summary_start:
            raise CorruptError(f"{where}: an attachment index points behind the data")
        summary.attachments[cursor.text()] = (offset, length)
    elif code == wire.Op.STATISTICS:
        cursor = Cursor(record, where)
        messages, _, channels, _, _, chunks = (cursor.number(code) for code in "QHIIII")
        summary.counted = (messages, channels, chunks)
        cursor.take(16)
        pairs = cursor.take(cursor.number("I"))
        summary.statistics = {
            struct.unpack_from("<H", pairs, i)[0]: struct.unpack_from("<Q", pairs, i + 2)[0]
            for i in range(0, len(pairs) - 9, 10)
        }


def parse_attachment(record: memoryview, where: str) -> tuple[str, str, int, memoryview]:
    """(name, media type, log time, data) of an Attachment record's body, its crc checked.

    Raises:
        CorruptError: It differs from what was written.
    """
    cursor = Cursor(record, where)
    t_ns = cursor.number("Q")
    cursor.take(8)
    name, media_type = cursor.text(), cursor.text()
    data = cursor.take(cursor.number("Q"))
    crc = cursor.number("I")
    if crc and crc32(record[:-4]) != crc:
        raise CorruptError(f"{where}: crc of attachment {name} differs")
    return name, media_type, t_ns, data


def _own_index(summary: Summary, near: tuple[int, bytes], read: Callable[[int, int], bytes], where: str) -> Receipt:
    offset, length = summary.attachments[_INDEX_NAME]
    base, tail = near
    if offset >= base:
        raw = memoryview(tail)[offset - base : offset - base + length]
    else:
        if length > _MAX_SUMMARY:
            raise LimitError(f"{where}: tg.index of {length} bytes")
        raw = memoryview(read(offset, length))
    if len(raw) < 9 or raw[0] != wire.Op.ATTACHMENT:
        raise CorruptError(f"{where}: no attachment where tg.index should lie")
    _, _, _, data = parse_attachment(raw[9:], where)
    return read_index(bytes(data), size_bytes=summary.size_bytes)


def read_receipt(store: Store, key: str, *, sha256: str = "") -> Receipt:
    """The receipt inside an episode of ours (its `sha256` as given; the file cannot hold its own).

    Raises:
        UnsupportedError: A stock MCAP without `tg.index`.
        CorruptError: Damaged.
    """
    summary, near, read = _summary_of(store, key)
    if _INDEX_NAME not in summary.attachments:
        raise UnsupportedError(
            f"{store.url}/{key}: a stock MCAP without tg.index; `kinemill episode repack` converts it"
        )

    return replace(_own_index(summary, near, read, f"{store.url}/{key}"), sha256=sha256)


def _summary_of(store: Store, key: str) -> tuple[Summary, tuple[int, bytes], Callable[[int, int], bytes]]:
    size = store.head(key).size_bytes

    def read(start: int, length: int) -> bytes:
        return store.get_range(key, start, length)

    summary, near = read_summary(size, read, f"{store.url}/{key}")
    return summary, near, read


def find_layout(store: Store, key: str) -> tuple[Layout, bool]:
    """The layout of an object, and whether it is one of ours (checksums and sequences are then demanded).

    Raises:
        UnsupportedError: A stock MCAP whose summary does not list all that is in it.
        TruncatedError: It does not end as an MCAP does.
        CorruptError: Damaged.
    """
    summary, near, read = _summary_of(store, key)
    if _INDEX_NAME in summary.attachments:
        return Layout.from_receipt(_own_index(summary, near, read, f"{store.url}/{key}")), True
    if lack := _lack(summary):
        raise UnsupportedError(
            f"{store.url}/{key}: {lack}, so it cannot be read in place; `kinemill episode repack` makes an episode of "
            "it"
        )
    return stock_layout(summary), False


def look_at_stock(store: Store, key: str) -> tuple[Layout, str]:
    """The layout of a stock MCAP as its summary tells it, and what keeps it from being read in place, if anything."""
    summary, _, _ = _summary_of(store, key)
    return stock_layout(summary), _lack(summary)


def _lack(summary: Summary) -> str:
    """What a stock file's summary leaves out, without which messages would be missed and nobody told; else empty."""
    messages, channels, chunks = summary.counted or (None, len(summary.channels), len(summary.chunks))
    if not summary.chunks and messages != 0:
        return "its summary lists no chunk"
    if len(summary.chunks) != chunks:
        return f"its summary lists {len(summary.chunks)} of {chunks} chunks"
    if len(summary.channels) != channels or not set().union(*(c.channels for c in summary.chunks)) <= set(
        summary.channels
    ):
        return f"its summary lists {len(summary.channels)} of {channels} channels"
    if not {schema for schema, *_ in summary.channels.values()} <= {0, *summary.schemas}:
        return "its summary does not repeat the schemas"
    return ""


def stock_layout(summary: Summary) -> Layout:
    """One group of all topics, from a stock file's chunk index; nobody counted messages per chunk."""
    topics = []
    for number, (schema_id, topic, encoding, metadata) in sorted(summary.channels.items()):
        schema = summary.schemas.get(schema_id, ("", "", b""))[0]
        kind = guess_kind(schema)
        count = 0 if summary.statistics is None else summary.statistics.get(number, 0)
        names: dict[str, Any] = {}
        if kind is TopicKind.VIDEO:
            names["codec"] = metadata.get("codec", "h264")
        topics.append(TopicReceipt(topic, kind, number, _plain(schema), encoding, count, **names))
    chunks = sorted(summary.chunks, key=lambda c: c.offset)
    columns = [
        np.array([getattr(c, name) for c in chunks], np.int64)
        for name in ("offset", "length", "t_first_ns", "t_last_ns")
    ]
    in_order = bool((columns[2][1:] >= columns[3][:-1]).all())
    return Layout(
        (GroupLayout("mixed", tuple(topics), columns[0], columns[1], columns[2], columns[3], None, in_order=in_order),)
    )


def _plain(schema: str) -> str:
    """ROS 1 writes a message's type without the `/msg/`."""
    return JOINT_STATE if schema == "sensor_msgs/JointState" else schema
