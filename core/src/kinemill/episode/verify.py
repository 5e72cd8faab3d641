"""Prove that a file is what a writer wrote: every byte of it stands under some check.

Chunks, attachments, the data section and the summary each carry a CRC; the few bytes outside them
(magic, DataEnd, footer) are compared with what they must be. Beyond checksums, the three tellings
of where things lie (the records themselves, the summary, `tg.index`) have to agree, sequence
numbers have to run on without a gap, and every camera frame has to be one that may stand there.
"""

from __future__ import annotations

import itertools
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from kinemill.contracts.episode import TopicKind
from kinemill.episode import wire
from kinemill.episode.agree import Finding, Seen, SeenChunk, compare_index, compare_summary
from kinemill.episode.checksum import crc32
from kinemill.episode.frame_order import FrameOrder
from kinemill.episode.h264 import check_packet, first_slice_is_idr
from kinemill.episode.hashing import StreamHash
from kinemill.episode.index import read_index
from kinemill.episode.opened import decompress, read_chunk_head
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
from kinemill.episode.walk import OpenChunk, walk
from kinemill.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Finding", "VerifyReport", "verify"]

_MOST: Final = 100
_TELL: Final = 32 << 20
_MAGIC: Final = len(wire.MAGIC)
_NONE: Final = np.empty(0, np.int64)


@dataclass(slots=True)
class VerifyReport:
    """What `verify` saw.

    Attributes:
        findings: At most 100; empty for a sound file.
        mcap: Whether it starts as an MCAP does.
        own: Whether it is an episode of ours; a stock MCAP is only held to what it claims.
        live: Whether it is a live recording that `repack` has not put in order.
    """

    name: str
    size_bytes: int
    sha256: str = ""
    mcap: bool = False
    own: bool = False
    live: bool = False
    messages: int = 0
    chunks: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings


class _Verifier:
    def __init__(self, source: Source, *, deep: bool, progress: Callable[[int, int], None] | None) -> None:
        self.report = VerifyReport(source.name, source.size)
        self._source = source
        self._deep = deep
        self._progress = progress
        self._hash = StreamHash()
        self._at = 0
        self._run: Record | None = None
        """The first of the records that are not hashed yet; all lie in its block."""
        self._seen = Seen()
        self._sequence: Counter[int] = Counter()
        self._starts: dict[int, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        """Of the last chunk: channel -> times and offsets of its messages, until its message index was compared."""
        self._orders: dict[int, FrameOrder] = {}
        self._in_summary = False
        self._told = 0

    def find(self, code: str, text: str) -> None:
        if len(self.report.findings) < _MOST:
            self.report.findings.append(Finding(code, text))

    def run(self) -> VerifyReport:
        try:
            magic = bytes(self._source.read(0, min(_MAGIC, self._source.size)))
            self.report.mcap = magic == wire.MAGIC
            self._hash.update(magic)
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
        self.report.messages, self.report.chunks = self._seen.messages, len(self._seen.chunks)
        return self.report

    def _feed(self, record: Record) -> None:
        """Hash a record; neighbours in one block of memory go together, as each call has its price."""
        if self._run is not None and self._run.block is not record.block:
            self._flush()
        if self._run is None:
            self._run = record
        self._at = record.offset + len(record.data)
        if self._progress is not None and self._at - self._told >= _TELL:
            self._told = self._at
            self._progress(self._at, self._source.size)

    def _flush(self) -> None:
        if self._run is not None:
            block, base, start = self._run.block, self._run.block_at, self._run.offset
            self._run = None
            self._hash.update(block[start - base : self._at - base])

    # -- the data section

    def _data(self, record: Record) -> None:
        where = f"record {record.op:#x} at {record.offset}"
        if record.op != wire.Op.MESSAGE_INDEX:
            self._close_chunk()
        try:
            if record.op == wire.Op.CHUNK:
                self._chunk(record)
            elif record.op == wire.Op.MESSAGE_INDEX:
                self._message_index(record)
            elif record.op == wire.Op.SCHEMA:
                number, schema = parse_schema(record.body, where)
                self._define(f"schema {number}", record)
                self._seen.schemas[number] = schema
            elif record.op == wire.Op.CHANNEL:
                number, channel = parse_channel(record.body, where)
                self._define(f"channel {number}", record)
                self._seen.channels[number] = channel
            elif record.op == wire.Op.ATTACHMENT:
                self._attachment(record)
            elif record.op == wire.Op.METADATA:
                cursor = Cursor(record.body, where)
                name = cursor.text()
                self._seen.metadata[record.offset, name] = len(record.data)
                if name == "tg.layout":
                    self._seen.layout = cursor.strings()
                    self._seen.own = self.report.own = True
                    self._seen.live = self.report.live = self._seen.layout.get("live") == "true"
            elif record.op == wire.Op.MESSAGE:
                if self.report.own:
                    self.find("structure", f"a message outside chunks at {record.offset}")
                self._seen.messages += 1
            elif record.op == wire.Op.PADDING:
                if any(record.body):
                    self.find("padding", f"padding at {record.offset} is not zero")
            elif record.op != wire.Op.HEADER and record.op < 0x80:
                self.find("structure", f"a record of type {record.op:#x} at {record.offset} in the data section")
        except DataError as exc:
            self.find("data", str(exc))

    def _define(self, what: str, record: Record) -> None:
        raw = bytes(record.data)
        if self._seen.raw.setdefault(what, raw) != raw:
            self.find("data", f"{what} is defined again at {record.offset}, differently")

    def _close_chunk(self) -> None:
        """All message indexes of the last chunk were seen."""
        if self._starts and self._seen.own:
            at = self._seen.chunks[-1].offset
            self.find("message_index", f"chunk at {at}: channels {sorted(self._starts)} have no index")
        self._starts = {}

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
        idr_ns = self._frames(chunk, channel_ids, where)
        self._seen.messages += len(chunk.time)
        self._starts = starts
        self._seen.chunks.append(
            SeenChunk(
                record.offset,
                len(record.data),
                head.t_first_ns,
                head.t_last_ns,
                head.crc,
                head.raw_size,
                head.compression,
                head.data_size,
                counts,
                idr_ns,
            )
        )

    def _learn_inner(self, data: memoryview) -> None:
        """Stock files keep schemas and channels inside chunks."""
        for op, body in records_of(data, "chunk"):
            if op == wire.Op.CHANNEL:
                number, channel = parse_channel(body, "chunk")
                self._seen.channels.setdefault(number, channel)
            elif op == wire.Op.SCHEMA:
                number, schema = parse_schema(body, "chunk")
                self._seen.schemas.setdefault(number, schema)

    def _sequences(self, channel: int, sequence: NDArray[np.int64], where: str) -> None:
        start = self._sequence[channel] + 1
        expected = np.arange(start, start + len(sequence)) & 0xFFFFFFFF
        if np.count_nonzero(sequence != expected):
            self.find("sequence", f"{where}: channel {channel} goes on with {int(sequence[0])}, expected {start}")
        self._sequence[channel] += len(sequence)

    def _frames(self, chunk: OpenChunk, channel_ids: Sequence[int], where: str) -> frozenset[int] | None:
        """Camera frames: a chunk starts with an IDR of each camera; with `deep`, each is checked NAL by NAL.

        Returns:
            Times of all IDRs; None where not all frames were looked at.
        """
        found: set[int] = set()
        for channel in channel_ids:
            if not self._is_video(channel):
                continue
            topic = self._seen.channels[channel][1]
            mine = chunk.of(channel)
            offsets, ends, times = chunk.offset[mine], chunk.end[mine], chunk.time[mine]
            order = self._orders.setdefault(channel, FrameOrder())
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
                whole = bytes(packet)
                if check_packet(whole, where=f"{where}: {topic}").idr:
                    found.add(int(times[i]))
                if lost := order.missing(whole):
                    at = f"{topic} at {int(times[i])} ns"
                    self.find("video", f"{where}: {at} follows {lost} frames that are not there; it decodes wrongly")
        return frozenset(found) if self._deep else None

    def _is_video(self, channel: int) -> bool:
        if not self.report.own or channel not in self._seen.channels:
            return False
        found = self._seen.channels[channel]
        return found[3].get("tg.kind") == TopicKind.VIDEO.value and self._seen.schemas.get(found[0], ("",))[0] == VIDEO

    def _message_index(self, record: Record) -> None:
        if not self._seen.chunks:
            self.find("message_index", f"a message index at {record.offset} before any chunk")
            return
        chunk = self._seen.chunks[-1]
        cursor = Cursor(record.body, f"message index at {record.offset}")
        channel, size = cursor.number("H"), cursor.number("I")
        pairs = record.body[6:]
        if size != len(pairs) or size % 16:
            self.find("message_index", f"message index at {record.offset}: {size} bytes declared, {len(pairs)} there")
            return
        chunk.index_offsets[channel] = record.offset
        chunk.index_length += len(record.data)
        table = np.frombuffer(pairs, "<i8").reshape(-1, 2)
        times, offsets = self._starts.pop(channel, (_NONE, _NONE))
        if len(times) == len(table) and not (
            np.count_nonzero(table[:, 0] != times) or np.count_nonzero(table[:, 1] != offsets)
        ):
            return
        # the order of a message index is free
        if sorted(map(tuple, table.tolist())) != sorted(zip(times.tolist(), offsets.tolist(), strict=True)):
            self.find("message_index", f"message index at {record.offset}: not the messages of its chunk")

    def _attachment(self, record: Record) -> None:
        where = f"attachment at {record.offset}"
        name, media_type, t_ns, data = parse_attachment(record.body, where)
        (created_ns,) = struct.unpack_from("<Q", record.body, 8)
        self._seen.attachments[record.offset, name] = (len(record.data), t_ns, created_ns, len(data), media_type)
        if name == "tg.index":
            self._seen.index = read_index(bytes(data))

    # -- the end of the file

    def _end(self, record: Record) -> None:
        if record.op == wire.Op.DATA_END and not self._in_summary:
            self._close_chunk()
            self._in_summary = True
            self._seen.summary_at = record.offset + len(record.data)
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
            self._seen.summary.append(record)

    def _footer(self, record: Record) -> None:
        if len(record.body) != 20:
            self.find("structure", f"footer of {len(record.body)} bytes")
            return
        start, offsets, crc = struct.unpack("<QQI", record.body)
        if not self._in_summary:
            self.find("structure", "no DataEnd before the footer")
        if self._seen.summary and start != self._seen.summary_at:
            self.find(
                "summary", f"the footer says that the summary starts at {start}; it does at {self._seen.summary_at}"
            )
        value = 0
        for part in self._seen.summary:
            value = crc32(part.data, value)
        value = crc32(record.data[:-4], value)
        if (crc or self.report.own) and crc != value:
            self.find("summary_crc", "crc of the summary differs")
        firsts = [r.offset for r in self._seen.summary if r.op == wire.Op.SUMMARY_OFFSET]
        if offsets and (not firsts or offsets != firsts[0]):
            self.find("summary", f"the footer says that summary offsets start at {offsets}")

    def _last(self) -> None:
        self._close_chunk()
        for finding in itertools.chain(compare_summary(self._seen), compare_index(self._seen)):
            self.find(finding.code, finding.text)
        self.report.sha256 = self._hash.hexdigest()


def verify(
    source: Source,
    *,
    deep: bool = False,
    sha256: str | None = None,
    size_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> VerifyReport:
    """Read a whole file once and check all of it. Memory is bounded by one chunk and the index.

    Args:
        source: The file.
        deep: Also check every camera frame NAL by NAL.
        sha256: What it should be; the first 12 digits are enough.
        size_bytes: What it should be.
        progress: Called with (bytes done, bytes), some times a second.

    Returns:
        The report; damage is a finding, not an exception.
    """
    report = _Verifier(source, deep=deep, progress=progress).run()
    if size_bytes is not None and size_bytes != report.size_bytes:
        report.findings.append(Finding("size", f"{report.size_bytes} bytes, expected {size_bytes}"))
    if sha256 and report.sha256 and not report.sha256.startswith(sha256):
        report.findings.append(Finding("sha256", f"sha256 {report.sha256}, expected {sha256}"))
    return report
