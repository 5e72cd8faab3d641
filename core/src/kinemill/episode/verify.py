"""Prove that a file is what a writer wrote: every byte of it stands under some check.

Chunks, attachments, the data section and the summary each carry a CRC; the few bytes outside them
(magic, DataEnd, footer) are compared with what they must be. Beyond checksums, the three tellings
of where things lie (the records themselves, the summary, `tg.index`) have to agree, sequence
numbers have to run on without a gap, and every camera frame has to be one that may stand there.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.h264 import check_packet, first_slice_is_idr
from kinemill.episode.hashing import StreamHash
from kinemill.episode.index import read_index
from kinemill.episode.layout import Layout
from kinemill.episode.opened import OpenChunk, decompress, read_chunk_head, walk
from kinemill.episode.proto import video_bytes
from kinemill.episode.scan import Record, Source, records_in
from kinemill.episode.schemas import VIDEO
from kinemill.episode.source import (
    Cursor,
    parse_attachment,
    parse_channel,
    parse_schema,
    records_of,
)
from kinemill.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Finding", "VerifyReport", "verify"]

_MOST: Final = 100
_MAGIC: Final = len(wire.MAGIC)
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    code: str
    text: str


@dataclass(slots=True)
class VerifyReport:
    """What `verify` saw.

    Attributes:
        findings: At most 100; empty for a sound file.
        own: Whether it is an episode of ours; a stock MCAP is only held to what it claims.
        live: Whether it is a live recording that `repack` has not put in order.
    """

    name: str
    size_bytes: int
    sha256: str = ""
    own: bool = False
    live: bool = False
    messages: int = 0
    chunks: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


@dataclass(slots=True)
class _Chunk:
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
    starts: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]]
    """channel -> times and offsets of its messages, until its message index was compared."""
    index_offsets: dict[int, int] = field(default_factory=dict)
    index_length: int = 0


class _Verifier:
    def __init__(self, source: Source, *, deep: bool) -> None:
        self.report = VerifyReport(source.name, source.size)
        self._source = source
        self._deep = deep
        self._hash = StreamHash()
        self._at = 0
        self._run: Record | None = None
        """The first of the records that are not hashed yet; all lie in its block."""
        self._schemas: dict[int, tuple[str, str, bytes]] = {}
        self._channels: dict[int, tuple[int, str, str, dict[str, str]]] = {}
        self._raw: dict[str, bytes] = {}
        self._chunks: list[_Chunk] = []
        self._attachments: dict[tuple[int, str], tuple[int, int]] = {}
        self._metadata: dict[tuple[int, str], int] = {}
        self._layout: dict[str, str] = {}
        self._index: Receipt | None = None
        self._sequence: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self._in_summary = False
        self._summary_at = 0
        self._summary: list[Record] = []

    def find(self, code: str, text: str) -> None:
        if len(self.report.findings) < _MOST:
            self.report.findings.append(Finding(code, text))

    def run(self) -> VerifyReport:
        try:
            self._hash.update(self._source.read(0, min(_MAGIC, self._source.size)))
            self._at = _MAGIC
            for record in records_in(self._source):
                if record.op in (wire.Op.DATA_END, wire.Op.FOOTER) or self._in_summary:
                    self._end(record)
                else:
                    self._data(record)
                self._feed(record)
            self._flush()
            tail = bytes(self._source.read(self._at, self._source.size - self._at))
            self._hash.update(tail)
            if tail != wire.MAGIC:
                self.find("structure", f"{len(tail)} bytes behind the footer that are not the closing magic")
            self._last()
        except DataError as exc:
            self.find("structure", str(exc))
        finally:
            self._hash.stop()
        return self.report

    def _feed(self, record: Record) -> None:
        """Hash a record; neighbours in one block of memory go together, as each call has its price."""
        if self._run is not None and self._run.block is not record.block:
            self._flush()
        if self._run is None:
            self._run = record
        self._at = record.offset + len(record.data)

    def _flush(self) -> None:
        if self._run is not None:
            block, base, start = self._run.block, self._run.block_at, self._run.offset
            self._run = None
            self._hash.update(block[start - base : self._at - base])

    # -- the data section

    def _data(self, record: Record) -> None:
        where = f"record {record.op:#x} at {record.offset}"
        try:
            if record.op == wire.Op.CHUNK:
                self._chunk(record)
            elif record.op == wire.Op.MESSAGE_INDEX:
                self._message_index(record)
            elif record.op == wire.Op.SCHEMA:
                number, schema = parse_schema(record.body, where)
                self._schemas[number] = schema
                self._raw[f"schema {number}"] = bytes(record.data)
            elif record.op == wire.Op.CHANNEL:
                number, channel = parse_channel(record.body, where)
                self._channels[number] = channel
                self._raw[f"channel {number}"] = bytes(record.data)
            elif record.op == wire.Op.ATTACHMENT:
                self._attachment(record)
            elif record.op == wire.Op.METADATA:
                cursor = Cursor(record.body, where)
                name = cursor.text()
                self._metadata[record.offset, name] = len(record.data)
                if name == "tg.layout":
                    self._layout = cursor.strings()
                    self.report.own = True
                    self.report.live = self._layout.get("live") == "true"
            elif record.op == wire.Op.MESSAGE:
                if self.report.own:
                    self.find("structure", f"a message outside chunks at {record.offset}")
                self.report.messages += 1
            elif record.op == wire.Op.PADDING:
                if any(record.body):
                    self.find("padding", f"padding at {record.offset} is not zero")
            elif record.op != wire.Op.HEADER and record.op < 0x80:
                self.find("structure", f"a record of type {record.op:#x} at {record.offset} in the data section")
        except DataError as exc:
            self.find("data", str(exc))

    def _chunk(self, record: Record) -> None:
        where = f"chunk at {record.offset}"
        head = read_chunk_head(record.data, where=where)
        data = decompress(record.data[head.data_at :], head.compression, head.raw_size, where=where)
        if (head.crc or self.report.own) and crc32(data) != head.crc:
            self.find("chunk_crc", f"{where}: crc of its records differs")
            return
        chunk = walk(data, where=where)
        counts: Counter[int] = Counter()
        starts: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        channel_ids = sorted(chunk.lanes) or np.unique(chunk.channel).tolist()
        for channel in channel_ids:
            mine = chunk.of(channel)
            starts[channel] = (chunk.time[mine], chunk.offset[mine])
            counts[channel] = len(starts[channel][0])
            if self.report.own:
                self._sequences(channel, chunk.sequence[mine], where)
        if len(chunk.time) and chunk.span_ns != (head.t_first_ns, head.t_last_ns):
            self.find(
                "times",
                f"{where}: messages cover {chunk.span_ns}, its head says {head.t_first_ns, head.t_last_ns}",
            )
        if not self.report.own:
            self._learn_inner(data)
        self._frames(chunk, channel_ids, where)
        self.report.messages += len(chunk.time)
        self.report.chunks += 1
        self._chunks.append(
            _Chunk(
                record.offset,
                len(record.data),
                head.t_first_ns,
                head.t_last_ns,
                head.crc,
                head.raw_size,
                head.compression,
                head.data_size,
                counts,
                starts,
            )
        )

    def _learn_inner(self, data: memoryview) -> None:
        """Stock files keep schemas and channels inside chunks."""
        for op, body in records_of(data, "chunk"):
            if op == wire.Op.CHANNEL:
                number, channel = parse_channel(body, "chunk")
                self._channels.setdefault(number, channel)
            elif op == wire.Op.SCHEMA:
                number, schema = parse_schema(body, "chunk")
                self._schemas.setdefault(number, schema)

    def _sequences(self, channel: int, sequence: NDArray[np.int64], where: str) -> None:
        start = self._sequence[channel] + 1
        expected = np.arange(start, start + len(sequence)) & 0xFFFFFFFF
        if np.count_nonzero(sequence != expected):
            self.find("sequence", f"{where}: channel {channel} goes on with {int(sequence[0])}, expected {start}")
        self._sequence[channel] += len(sequence)

    def _frames(self, chunk: OpenChunk, channel_ids: Sequence[int], where: str) -> None:
        """Camera frames: a chunk starts with an IDR of each camera; with `deep`, each is checked NAL by NAL."""
        for channel in channel_ids:
            if not self._is_video(channel):
                continue
            topic = self._channels[channel][1]
            mine = chunk.of(channel)
            offsets, ends = chunk.offset[mine], chunk.end[mine]
            first = True
            for i in range(len(offsets)):
                packet, codec = video_bytes(chunk.data[int(offsets[i]) + wire.MESSAGE_HEAD.size : int(ends[i])])
                if codec != "h264":
                    self.find("video", f"{where}: {topic} holds {codec}")
                    continue
                if first and not self.report.live and not first_slice_is_idr(packet):
                    self.find("video", f"{where}: the first frame of {topic} is no IDR")
                first = False
                if not self._deep:
                    break
                check_packet(bytes(packet), where=f"{where}: {topic}")

    def _is_video(self, channel: int) -> bool:
        if not self.report.own or channel not in self._channels:
            return False
        found = self._channels[channel]
        return found[3].get("tg.kind") == TopicKind.VIDEO.value and self._schemas.get(found[0], ("",))[0] == VIDEO

    def _message_index(self, record: Record) -> None:
        if not self._chunks:
            self.find("message_index", f"a message index at {record.offset} before any chunk")
            return
        chunk = self._chunks[-1]
        channel, size = struct.unpack_from("<HI", record.body)
        pairs = record.body[6:]
        if size != len(pairs) or size % 16:
            self.find("message_index", f"message index at {record.offset}: {size} bytes declared, {len(pairs)} there")
            return
        chunk.index_offsets[channel] = record.offset
        chunk.index_length += len(record.data)
        table = np.frombuffer(pairs, "<i8").reshape(-1, 2)
        times, offsets = chunk.starts.pop(channel, (_NONE, _NONE))
        if len(times) == len(table) and not (
            np.count_nonzero(table[:, 0] != times) or np.count_nonzero(table[:, 1] != offsets)
        ):
            return
        # the order of a message index is free
        if sorted(map(tuple, table.tolist())) != sorted(zip(times.tolist(), offsets.tolist(), strict=True)):
            self.find("message_index", f"message index at {record.offset}: not the messages of its chunk")

    def _attachment(self, record: Record) -> None:
        where = f"attachment at {record.offset}"
        name, _, _, data = parse_attachment(record.body, where)
        self._attachments[record.offset, name] = (len(record.data), len(data))
        if name == "tg.index":
            self._index = read_index(bytes(data))

    # -- the end of the file

    def _end(self, record: Record) -> None:
        if record.op == wire.Op.DATA_END and not self._in_summary:
            self._in_summary = True
            self._summary_at = record.offset + len(record.data)
            if len(record.body) != 4:
                self.find("structure", f"DataEnd of {len(record.body)} bytes")
                return
            (crc,) = struct.unpack("<I", record.body)
            self._flush()
            if (crc or self.report.own) and crc != self._hash.crc():
                self.find("data_crc", "crc of the data section differs")
        elif record.op == wire.Op.FOOTER:
            self._footer(record)
        else:
            self._summary.append(record)

    def _footer(self, record: Record) -> None:
        if len(record.body) != 20:
            self.find("structure", f"footer of {len(record.body)} bytes")
            return
        start, offsets, crc = struct.unpack("<QQI", record.body)
        if not self._in_summary:
            self.find("structure", "no DataEnd before the footer")
        if self._summary and start != self._summary_at:
            self.find("summary", f"the footer says that the summary starts at {start}; it does at {self._summary_at}")
        value = 0
        for part in self._summary:
            value = crc32(part.data, value)
        value = crc32(record.data[:-4], value)
        if (crc or self.report.own) and crc != value:
            self.find("summary_crc", "crc of the summary differs")
        firsts = [r.offset for r in self._summary if r.op == wire.Op.SUMMARY_OFFSET]
        if offsets and (not firsts or offsets != firsts[0]):
            self.find("summary", f"the footer says that summary offsets start at {offsets}")

    def _last(self) -> None:
        for chunk in self._chunks:
            if self.report.own and chunk.starts:
                self.find("message_index", f"chunk at {chunk.offset}: channels {sorted(chunk.starts)} have no index")
        self._compare_summary()
        if self.report.own:
            self._compare_index()
        self.report.sha256 = self._hash.hexdigest()

    def _compare_summary(self) -> None:
        own = self.report.own
        chunks, attachments, metadata = {}, {}, {}
        statistics: Record | None = None
        for record in self._summary:
            where = f"summary record {record.op:#x} at {record.offset}"
            cursor = Cursor(record.body, where)
            if record.op == wire.Op.CHUNK_INDEX:
                chunks[struct.unpack_from("<Q", record.body, 16)[0]] = record
            elif record.op == wire.Op.ATTACHMENT_INDEX:
                offset, length, _, _, size = (cursor.number("Q") for _ in range(5))
                attachments[offset, cursor.text()] = (length, size)
            elif record.op == wire.Op.METADATA_INDEX:
                offset, length = cursor.number("Q"), cursor.number("Q")
                metadata[offset, cursor.text()] = length
            elif record.op == wire.Op.STATISTICS:
                statistics = record
            elif record.op in (wire.Op.SCHEMA, wire.Op.CHANNEL):
                name = "schema" if record.op == wire.Op.SCHEMA else "channel"
                number = struct.unpack_from("<H", record.body)[0]
                if own and self._raw.get(f"{name} {number}") != bytes(record.data):
                    self.find("summary", f"{name} {number} of the summary is not that of the data section")
        if own or chunks:
            self._compare_chunks(chunks)
        if (own or attachments) and attachments != self._attachments:
            self.find("summary", "attachment index and attachments differ")
        if (own or metadata) and metadata != self._metadata:
            self.find("summary", "metadata index and metadata records differ")
        if statistics is not None:
            self._compare_statistics(statistics)
        elif own:
            self.find("summary", "no statistics")

    def _compare_chunks(self, listed: dict[int, Record]) -> None:
        if set(listed) != {c.offset for c in self._chunks}:
            self.find("summary", f"the chunk index lists {len(listed)} chunks, the file has {len(self._chunks)}")
        for chunk in self._chunks:
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
            if self.report.own and expected != bytes(record.data):
                self.find("summary", f"the chunk index of the chunk at {chunk.offset} says other than the chunk")
            elif not self.report.own and expected[9:41] != bytes(record.body[:32]):
                self.find(
                    "summary", f"the chunk index of the chunk at {chunk.offset} has other times or another length"
                )

    def _compare_statistics(self, record: Record) -> None:
        cursor = Cursor(record.body, "statistics")
        messages = cursor.number("Q")
        if messages != self.report.messages:
            self.find("summary", f"statistics say {messages} messages, the file has {self.report.messages}")
        if self.report.own:
            totals: Counter[int] = Counter()
            for chunk in self._chunks:
                totals.update(chunk.counts)
            cursor.take(2 + 4 * 4 + 16)
            pairs = cursor.take(cursor.number("I"))
            listed = {
                struct.unpack_from("<H", pairs, i)[0]: struct.unpack_from("<Q", pairs, i + 2)[0]
                for i in range(0, len(pairs) - 9, 10)
            }
            if listed != {k: v for k, v in totals.items() if v}:
                self.find("summary", "statistics and messages per channel differ")

    def _compare_index(self) -> None:
        if self._index is None:
            self.find("tg_index", "no attachment tg.index")
            return
        found = {c.offset: c for c in self._chunks}
        listed = 0
        end = 0
        for group in self._index.groups:
            table = group.chunks
            ids = [t.channel_id for t in group.topics]
            layout = Layout.from_receipt(self._index).groups[self._index.groups.index(group)]
            for k, offset in enumerate(table.offset):
                chunk = found.get(offset)
                listed += 1
                if chunk is None:
                    self.find("tg_index", f"group {group.name}: no chunk at {offset}")
                    continue
                told = (table.length[k], table.t_first_ns[k], table.t_last_ns[k], table.messages[k], table.crc32[k])
                real = (chunk.length, chunk.t_first_ns, chunk.t_last_ns, chunk.counts.total(), chunk.crc)
                counts = None if layout.counts is None else layout.counts[:, k].tolist()
                if told != real or counts != [chunk.counts[i] for i in ids]:
                    self.find("tg_index", f"group {group.name}: chunk {k} is not as tg.index says")
            if group.chunks.offset and not self.report.live:
                if group.offset < end:
                    self.find("tg_index", f"group {group.name} starts inside the group before it")
                end = group.offset + group.length
        if listed != len(self._chunks):
            self.find("tg_index", f"tg.index lists {listed} chunks, the file has {len(self._chunks)}")
        if self._index.episode_id != self._layout.get("episode_id") or self._index.profile != self._layout.get(
            "profile"
        ):
            self.find("tg_index", "tg.index and tg.layout are of different episodes")


def verify(
    source: Source, *, deep: bool = False, sha256: str | None = None, size_bytes: int | None = None
) -> VerifyReport:
    """Read a whole file once and check all of it. Memory is bounded by one chunk and the index.

    Args:
        source: The file.
        deep: Also check every camera frame NAL by NAL.
        sha256: What it should be; the first 12 digits are enough.
        size_bytes: What it should be.

    Returns:
        The report; damage is a finding, not an exception.
    """
    report = _Verifier(source, deep=deep).run()
    if size_bytes is not None and size_bytes != report.size_bytes:
        report.findings.append(Finding("size", f"{report.size_bytes} bytes, expected {size_bytes}"))
    if sha256 and report.sha256 and not report.sha256.startswith(sha256):
        report.findings.append(Finding("sha256", f"sha256 {report.sha256}, expected {sha256}"))
    return report
