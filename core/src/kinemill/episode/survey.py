"""Walk a recording from its first byte on, and learn what its topics are. The first of the two passes of `repack`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

from kinemill.episode import wire
from kinemill.episode.cdr import decode_one
from kinemill.episode.foreign import Payload, read_payload, takes_pictures
from kinemill.episode.h264 import check_packet
from kinemill.episode.opened import open_chunk
from kinemill.episode.scan import Source, records_in
from kinemill.episode.schemas import JOINT_STATE
from kinemill.episode.source import Cursor, parse_attachment, parse_channel, parse_schema, read_summary, records_of
from kinemill.episode.walk import OpenChunk
from kinemill.errors import CorruptError, DataError, LimitError, TruncatedError

__all__ = ["Scan", "SurveyedTopic", "Transcode", "survey", "topic_of"]

Transcode = Literal["needed", "never", "always"]
_PIECES: Final = ("holds more than one frame", "starts in the middle of a frame", "not Annex B")


@dataclass(slots=True)
class SurveyedTopic:
    """What the first pass learned of a channel."""

    name: str
    schema: str
    schema_encoding: str
    schema_data: bytes
    encoding: str
    metadata: dict[str, str]
    messages: int = 0
    first_ns: int = 0
    last_ns: int = 0
    payload: Payload | None = None
    why_not: str = ""
    """Why its packets cannot be passed through."""
    names: tuple[str, ...] = ()
    frame_id: str = ""
    fields: tuple[str, ...] = ()
    since_idr: int = 0
    longest_gop: int = 0
    width: int | None = None
    height: int | None = None
    kept: str = ""
    """Why its messages are kept as they are, though their kind has a place of its own."""
    pieces: int = 0
    """Messages that look like a part of a frame, or like several."""
    newest_ns: int = -1
    late: bool = False

    @property
    def rate_hz(self) -> float | None:
        try:
            told = float(self.metadata.get("rate_hz") or "nan")
        except ValueError:
            told = math.nan
        if not 0 < told < 1e6:
            if self.messages < 2 or self.last_ns <= self.first_ns or "tg.kind" in self.metadata:
                return None  # a topic of ours that tells no rate has none
            told = round((self.messages - 1) * 1e9 / (self.last_ns - self.first_ns), 3)
        return told if 0 < told < 1e6 else None


class Scan:
    """Walks the source's messages; keeps what it learns of schemas and channels."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.counts: Counter[str] = Counter()
        self.notes: list[str] = []
        self.schemas: dict[int, tuple[str, str, bytes]] = {}
        self.channels: dict[int, tuple[int, str, str, dict[str, str]]] = {}
        self.layout: dict[str, str] = {}
        self.metadata: list[tuple[str, dict[str, str]]] = []
        self.attachments: list[tuple[str, str, int, bytes]] = []

    def messages(self) -> Iterator[tuple[int, int, memoryview]]:
        """(channel id, log time, payload), in file order; a hole is told by channel id -1."""
        self.counts.clear()
        self.notes.clear()
        self.attachments.clear()
        self.metadata.clear()
        end = 0
        records = records_in(self.source)
        while True:
            try:
                record = next(records)
            except StopIteration:
                return
            except (TruncatedError, CorruptError) as exc:
                if not end and not isinstance(exc, TruncatedError):
                    raise
                # a power cut leaves half a record, or a tail of zeros
                self.counts["bytes_cut"] = self.source.size - max(end, 8)
                self.notes.append(str(exc))
                return
            end = record.offset + len(record.data)
            if record.op == wire.Op.DATA_END:
                return
            yield from self._record(record.op, record.offset, record.data, record.body)

    def _record(
        self, op: int, offset: int, data: memoryview, body: memoryview
    ) -> Iterator[tuple[int, int, memoryview]]:
        where = f"{self.source.name}: record at {offset}"
        if op == wire.Op.CHUNK:
            try:
                chunk = open_chunk(data, where=f"{self.source.name}: chunk at {offset}", must_have_crc=False)
                self._learn(chunk.data)
            except LimitError:
                raise
            except DataError as exc:
                self.counts["chunks_dropped"] += 1
                self.notes.append(str(exc))
                yield -1, 0, memoryview(b"")
                return
            yield from _messages_of(chunk)
        elif op == wire.Op.MESSAGE:
            if len(data) < wire.MESSAGE_HEAD.size:
                self.counts["messages_dropped"] += 1
                self.notes.append(f"{where}: a message of {len(data)} bytes")
                return
            _, _, channel, _, t_ns, _ = wire.MESSAGE_HEAD.unpack_from(data)
            yield channel, t_ns, data[wire.MESSAGE_HEAD.size :]
        elif op in (wire.Op.SCHEMA, wire.Op.CHANNEL):
            self._learn(data)
        elif op == wire.Op.METADATA:
            cursor = Cursor(body, where)
            try:
                name, items = cursor.text(), cursor.strings()
            except CorruptError as exc:
                self.counts["metadata_dropped"] += 1
                self.notes.append(str(exc))
                return
            if name == "tg.layout":
                self.layout = items
            else:
                self.metadata.append((name, items))
        elif op == wire.Op.ATTACHMENT:
            try:
                name, media_type, t_ns, content = parse_attachment(body, where)
            except CorruptError as exc:
                self.counts["attachments_dropped"] += 1
                self.notes.append(str(exc))
                return
            if not name.startswith("tg."):
                self.attachments.append((name, media_type, t_ns, bytes(content)))

    def ask_summary(self) -> None:
        """Learn of channels whose own record was in a chunk that is damaged."""
        try:
            summary, _ = read_summary(self.source.size, self.source.read, self.source.name)
        except DataError as exc:
            self.notes.append(str(exc))
            return
        for number, channel in summary.channels.items():
            self.channels.setdefault(number, channel)
        for number, schema in summary.schemas.items():
            self.schemas.setdefault(number, schema)

    def _learn(self, data: memoryview) -> None:
        for op, body in records_of(data, self.source.name):
            if op == wire.Op.SCHEMA:
                number, schema = parse_schema(body, self.source.name)
                if self.schemas.setdefault(number, schema) != schema:
                    raise CorruptError(f"{self.source.name}: schema {number} is defined twice, differently")
            elif op == wire.Op.CHANNEL:
                number, channel = parse_channel(body, self.source.name)
                if self.channels.setdefault(number, channel) != channel:
                    raise CorruptError(f"{self.source.name}: channel {number} is defined twice, differently")


def _messages_of(chunk: OpenChunk) -> Iterator[tuple[int, int, memoryview]]:
    head = wire.MESSAGE_HEAD.size
    for offset, end, channel, t_ns in zip(
        chunk.offset.tolist(), chunk.end.tolist(), chunk.channel.tolist(), chunk.time.tolist(), strict=True
    ):
        yield channel, t_ns, chunk.data[offset + head : end]


def survey(scan: Scan, transcode: Transcode) -> dict[int, SurveyedTopic]:
    """Channel id -> what is in it; of channels with messages."""
    topics: dict[int, SurveyedTopic] = {}
    for channel, t_ns, data in scan.messages():
        if channel < 0:
            continue
        topic = topics.get(channel) or topics.setdefault(channel, topic_of(scan, channel))
        if topic.messages == 0:
            topic.first_ns = topic.last_ns = t_ns
            _look(topic, data)
        topic.messages += 1
        topic.first_ns, topic.last_ns = min(topic.first_ns, t_ns), max(topic.last_ns, t_ns)
        if topic.payload is not None and topic.payload.codec == "h264":
            _judge(topic, t_ns, data, transcode)
    return topics


def topic_of(scan: Scan, channel: int) -> SurveyedTopic:
    """A channel without what its messages tell.

    Raises:
        CorruptError: No record describes it.
    """
    found = scan.channels.get(channel)
    if found is None:
        scan.ask_summary()
        found = scan.channels.get(channel)
    if found is None:
        raise CorruptError(
            f"{scan.source.name}: messages of channel {channel}, which no record describes: the chunk that did is "
            "damaged, and so is the summary"
        )
    schema_id, name, encoding, metadata = found
    schema = scan.schemas.get(schema_id, ("", "", b""))
    return SurveyedTopic(name, schema[0], schema[1], schema[2], encoding, metadata)


def _look(topic: SurveyedTopic, data: memoryview) -> None:
    """Learn from a topic's first message what its others will be; one that is not understood is kept as it is."""
    try:
        _look_into(topic, data)
    except DataError as exc:
        topic.payload, topic.names, topic.fields = None, (), ()
        topic.kept = str(exc)


def _look_into(topic: SurveyedTopic, data: memoryview) -> None:
    if takes_pictures(topic.schema, topic.encoding):
        payload = read_payload(topic.schema, topic.encoding, data)
        topic.payload = replace(payload, data=b"") if payload.kind != "raw" else payload
        if payload.image is not None:
            topic.height, topic.width = payload.image.shape[:2]
        if payload.kind != "video":
            topic.why_not = f"{payload.codec} pictures"
        elif payload.codec != "h264":
            topic.why_not = f"{payload.codec} video"
    elif topic.schema == JOINT_STATE and topic.encoding == "cdr":
        topic.frame_id, topic.names, arrays = decode_one(data)
        lengths = {len(a) for a in arrays if len(a)}
        if lengths == {len(topic.names)} and len(set(topic.names)) == len(topic.names):
            topic.fields = tuple(f for f, a in zip(("position", "velocity", "effort"), arrays, strict=True) if len(a))
        else:
            topic.names = ()


def _judge(topic: SurveyedTopic, t_ns: int, data: memoryview, transcode: Transcode) -> None:
    if transcode == "always":
        topic.why_not = "asked for"
        return
    try:
        payload = read_payload(topic.schema, topic.encoding, data)
        info = check_packet(payload.data, where=f"topic {topic.name} at {t_ns} ns")
    except DataError as exc:
        topic.why_not = topic.why_not or str(exc)
        topic.pieces += any(what in str(exc) for what in _PIECES) and topic.messages > 1
        return
    if topic.why_not:
        return
    # a late IDR may stand alone, as our writer stores a late frame
    if not info.idr and (t_ns < topic.newest_ns or topic.late):
        topic.why_not = f"topic {topic.name}: its time goes back at {t_ns} ns"
    topic.late = t_ns < topic.newest_ns
    topic.newest_ns = max(topic.newest_ns, t_ns)
    topic.since_idr = 1 if info.idr else topic.since_idr + 1
    topic.longest_gop = max(topic.longest_gop, topic.since_idr)
