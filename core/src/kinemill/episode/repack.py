"""Put a recording in order: convert a stock MCAP, save a half-written one, lay out a live one.

Two passes over the complete records, from the first byte on; no index in the file is believed.
The first pass learns topics and what their messages are, the second feeds them to a writer. The
result is read back and verified before it gets its name.

- Groups of an episode of ours are kept; foreign topics are grouped by kind.
- H.264 that meets the rules is passed through; other video, JPEG and PNG is encoded anew, unless
  `transcode` forbids it.
- A chunk that fails its CRC is dropped and counted; a camera then waits for its next IDR.
"""

from __future__ import annotations

import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import wire
from kinemill.episode.cdr import decode_one
from kinemill.episode.foreign import Payload, PictureDecoder, read_payload, takes_pictures
from kinemill.episode.frame_order import FrameOrder
from kinemill.episode.h264 import check_packet, first_slice_is_idr
from kinemill.episode.opened import OpenChunk, open_chunk
from kinemill.episode.scan import FileSource, Source, records_in
from kinemill.episode.schemas import JOINT_STATE, guess_kind
from kinemill.episode.source import Cursor, parse_attachment, parse_channel, parse_schema, records_of
from kinemill.episode.topics import PROFILES, Profile, TopicSpec, profile_of
from kinemill.episode.verify import verify
from kinemill.episode.writer import EpisodeWriter
from kinemill.errors import ConflictError, CorruptError, DataError, LimitError, TruncatedError, UnsupportedError

__all__ = ["RepackReport", "repack"]

Transcode = Literal["needed", "never", "always"]


@dataclass(slots=True)
class RepackReport:
    """What `repack` did.

    Attributes:
        receipt: Of the new file.
        messages_in: Messages in complete, sound chunks of the source.
        messages_out: Messages of the new file.
        counts: What was dropped or changed: `chunks_dropped`, `bytes_cut`, `frames_without_idr`, `transcoded`, ...
        notes: For people.
    """

    receipt: Receipt
    messages_in: int
    messages_out: int
    counts: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


@dataclass(slots=True)
class _Topic:
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
    first: bytes = b""
    payload: Payload | None = None
    why_not: str = ""
    """Why its packets cannot be passed through."""
    names: tuple[str, ...] = ()
    frame_id: str = ""
    fields: tuple[str, ...] = ()
    idr_seen: bool = False

    @property
    def rate_hz(self) -> float | None:
        told = self.metadata.get("rate_hz")
        if told:
            try:
                return float(told)
            except ValueError:
                pass
        if self.messages < 2 or self.last_ns <= self.first_ns:
            return None
        return round((self.messages - 1) * 1e9 / (self.last_ns - self.first_ns), 3)


class _Scan:
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
        try:
            for record in records_in(self.source):
                end = record.offset + len(record.data)
                if record.op == wire.Op.DATA_END:
                    return
                yield from self._record(record.op, record.offset, record.data, record.body)
        except TruncatedError as exc:
            self.counts["bytes_cut"] = self.source.size - max(end, 8)
            self.notes.append(str(exc))

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
                raise CorruptError(f"{where}: a message of {len(data)} bytes")
            _, _, channel, _, t_ns, _ = wire.MESSAGE_HEAD.unpack_from(data)
            yield channel, t_ns, data[wire.MESSAGE_HEAD.size :]
        elif op in (wire.Op.SCHEMA, wire.Op.CHANNEL):
            self._learn(data)
        elif op == wire.Op.METADATA:
            cursor = Cursor(body, where)
            name, items = cursor.text(), cursor.strings()
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


# ---- first pass


def _survey(scan: _Scan, transcode: Transcode) -> dict[int, _Topic]:
    topics: dict[int, _Topic] = {}
    for channel, t_ns, data in scan.messages():
        if channel < 0:
            for topic in topics.values():
                topic.idr_seen = False
            continue
        topic = topics.get(channel) or topics.setdefault(channel, _new_topic(scan, channel))
        if topic.messages == 0:
            topic.first_ns = topic.last_ns = t_ns
            topic.first = bytes(data[: 1 << 16])
            _look(topic, data)
        topic.messages += 1
        topic.first_ns, topic.last_ns = min(topic.first_ns, t_ns), max(topic.last_ns, t_ns)
        if topic.payload is not None and topic.payload.codec == "h264" and not topic.why_not:
            _judge(topic, t_ns, data, transcode)
    return topics


def _new_topic(scan: _Scan, channel: int) -> _Topic:
    found = scan.channels.get(channel)
    if found is None:
        raise CorruptError(f"{scan.source.name}: messages of channel {channel}, which no record describes")
    schema_id, name, encoding, metadata = found
    schema = scan.schemas.get(schema_id, ("", "", b""))
    return _Topic(name, schema[0], schema[1], schema[2], encoding, metadata)


def _look(topic: _Topic, data: memoryview) -> None:
    """Learn from a topic's first message what its others will be."""
    if takes_pictures(topic.schema, topic.encoding):
        payload = read_payload(topic.schema, topic.encoding, data)
        topic.payload = replace(payload, data=b"") if payload.kind != "raw" else payload
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


def _judge(topic: _Topic, t_ns: int, data: memoryview, transcode: Transcode) -> None:
    if transcode == "always":
        topic.why_not = "asked for"
        return
    try:
        payload = read_payload(topic.schema, topic.encoding, data)
        info = check_packet(payload.data, where=f"topic {topic.name} at {t_ns} ns")
    except DataError as exc:
        topic.why_not = str(exc)
        return
    topic.idr_seen = topic.idr_seen or info.idr


# ---- second pass


class _Route:
    """How one channel's messages go into the writer."""

    def __init__(self, topic: _Topic, name: str) -> None:
        self.topic = topic
        self.name = name
        self.way: Literal["packet", "picture", "message"] = "message"
        if topic.payload is not None:
            depth = topic.payload.codec == "depth" or topic.metadata.get("tg.kind") in ("depth", "tactile")
            if not depth:
                self.way = "picture" if topic.why_not else "packet"
        self.decoder = PictureDecoder() if self.way == "picture" else None
        self.order = FrameOrder()
        self.open = False

    def hole(self) -> None:
        """Messages are missing here: what depends on them would be invented by a decoder."""
        self.order.reset()
        self.open = False

    def takes(self, payload: Payload, *, idr: bool | None, counts: Counter[str]) -> bool:
        """Whether a packet can be decoded, by all that came before it.

        Args:
            payload: Of a camera.
            idr: Whether it starts a GOP; None where nobody can tell, as with codecs other than H.264.
            counts: `frames_lost_before` is told here, and `frames_without_idr`.
        """
        if payload.codec == "h264" and (lost := self.order.missing(payload.data)) and not idr:
            counts["frames_lost_before"] += lost
            self.open = False
        self.open = self.open or idr is not False
        if not self.open:
            counts["frames_without_idr"] += 1
        return self.open

    def spec(self) -> TopicSpec:
        topic = self.topic
        told = topic.metadata.get("tg.kind")
        kind = TopicKind(told) if told in set(TopicKind) else guess_kind(topic.schema)
        if self.way != "message":
            kind = TopicKind.VIDEO
        elif topic.payload is not None:
            kind = TopicKind.DEPTH if told is None else kind
        elif kind is TopicKind.VIDEO:
            kind = TopicKind.OTHER
        extra = {
            k: v for k, v in topic.metadata.items() if k not in ("tg.group", "tg.kind", "rate_hz", "units", "codec")
        }
        plain: dict[str, Any] = {}
        if self.way == "message":
            plain = {
                "schema": topic.schema,
                "encoding": topic.encoding or "unknown",
                "schema_encoding": topic.schema_encoding,
                "schema_data": topic.schema_data,
            }
        return TopicSpec(
            self.name,
            kind,
            rate_hz=topic.rate_hz or (30.0 if self.way == "picture" else None),
            names=topic.names,
            fields=topic.fields or ("position",),
            units=topic.metadata.get("units"),
            group=topic.metadata.get("tg.group"),
            metadata=extra,
            **plain,
        )


def _routes(topics: Mapping[int, _Topic], transcode: Transcode, clashes: str) -> dict[int, _Route]:
    routes: dict[int, _Route] = {}
    taken: dict[str, _Topic] = {}
    for channel, topic in sorted(topics.items()):
        name = topic.name
        first = taken.get(name)
        if first is not None and (first.schema, first.encoding) != (topic.schema, topic.encoding):
            if clashes != "rename":
                raise UnsupportedError(
                    f"two topics are named {name}: one of {first.schema} ({first.encoding}), one of {topic.schema} "
                    f"({topic.encoding}); allow renaming the second (--rename-clashes)"
                )
            while name in taken:
                name += "_2"
        elif first is not None and topic.payload is not None:
            raise UnsupportedError(f"two publishers of camera topic {name}; their streams cannot be told apart")
        taken.setdefault(name, topic)
        routes[channel] = _Route(topic, name)
        if transcode == "never" and routes[channel].way == "picture":
            raise UnsupportedError(
                f"topic {name} would have to be encoded anew ({topic.why_not}); allow it (--transcode)"
            )
    # one group's cameras are all passed through or all encoded
    video = [r for r in routes.values() if r.way != "message"]
    for group in {r.topic.metadata.get("tg.group") for r in video}:
        members = [r for r in video if r.topic.metadata.get("tg.group") == group]
        if len({r.way for r in members}) > 1:
            for route in members:
                if route.way == "packet":
                    route.way, route.decoder = "picture", PictureDecoder()
                    route.topic.why_not = "a camera of its group has to be encoded"
    return routes


def repack(
    source: Path | Source,
    target: Path,
    *,
    profile: str | Profile | None = None,
    episode_id: uuid.UUID | str | None = None,
    transcode: Transcode = "needed",
    clashes: Literal["refuse", "rename"] = "refuse",
    progress: Callable[[int, int], None] | None = None,
) -> RepackReport:
    """Write a recording anew, in order.

    Args:
        source: A stock MCAP, a live recording, a half-written file.
        target: New file; must not exist.
        profile: None: the source's own, or `vla`.
        episode_id: None: the source's own, or a new one.
        transcode: Whether video and pictures that do not meet the rules are encoded anew.
        clashes: What to do with two topics of one name and different schemas.
        progress: Called with (messages done, messages).

    Raises:
        UnsupportedError: Something in it can not be converted as asked; the message names it.
        CorruptError: Nothing can be saved, or the result did not read back.
        ConflictError: The target exists.
    """
    if target.exists():
        raise ConflictError(f"{target}: exists already; nothing is overwritten")
    if isinstance(source, Path):
        with FileSource(source) as opened:
            return repack(
                opened,
                target,
                profile=profile,
                episode_id=episode_id,
                transcode=transcode,
                clashes=clashes,
                progress=progress,
            )
    scan = _Scan(source)
    topics = _survey(scan, transcode)
    if not topics and (scan.counts["bytes_cut"] or scan.counts["chunks_dropped"]):
        raise CorruptError(f"{source.name}: no complete chunk in it, nothing can be saved ({scan.notes[-1]})")
    routes = _routes(topics, transcode, clashes)
    chosen = profile if profile is not None else scan.layout.get("profile", "vla")
    if isinstance(chosen, str) and chosen not in PROFILES:
        chosen = replace(PROFILES["vla"], name=chosen)
    specs = {route.name: route.spec() for route in routes.values()}
    for _, name, _, metadata in scan.channels.values():  # topics that were promised and never came
        if name not in {t.name for t in topics.values()} and metadata.get("tg.kind") in set(TopicKind):
            scan.notes.append(f"topic {name} has no message")
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.repack")
    writer = EpisodeWriter(
        temporary,
        episode_id=episode_id or scan.layout.get("episode_id") or uuid.uuid4(),
        profile=profile_of(chosen),
        topics=list(specs.values()),
    )
    try:
        with writer:
            fed = _feed(scan, routes, writer, sum(t.messages for t in topics.values()), progress)
        receipt = writer.receipt
        if receipt is None:
            raise CorruptError(f"{source.name}: nothing was written")
        _read_back(temporary, receipt, fed)
        os.link(temporary, target)
    except FileExistsError as exc:
        raise ConflictError(f"{target}: exists already; nothing is overwritten") from exc
    finally:
        temporary.unlink(missing_ok=True)
    counts = {**scan.counts, **receipt.counts}
    transcoded = sum(r.way == "picture" for r in routes.values())
    counts.update({"topics_encoded_anew": transcoded} if transcoded else {})
    notes = scan.notes + [f"topic {r.name} was encoded anew: {r.topic.why_not}" for r in routes.values() if r.decoder]
    return RepackReport(
        receipt,
        sum(t.messages for t in topics.values()),
        sum(g.messages for g in receipt.groups),
        counts,
        notes,
    )


def _feed(
    scan: _Scan,
    routes: Mapping[int, _Route],
    writer: EpisodeWriter,
    total: int,
    progress: Callable[[int, int], None] | None,
) -> int:
    """Second pass; returns how many messages the writer was given."""
    fed = 0
    for done, (channel, t_ns, data) in enumerate(scan.messages()):
        if progress is not None and done % 1000 == 0:
            progress(done, total)
        if channel < 0:
            for route in routes.values():
                fed += _end_stream(route, writer)
                route.hole()
            continue
        route = routes[channel]
        if route.way == "message":
            writer.message(route.name, t_ns, bytes(data))
            fed += 1
        elif route.decoder is not None:
            fed += _feed_pictures(scan, route, writer, t_ns, data)
        else:
            payload = read_payload(route.topic.schema, route.topic.encoding, data)
            info = check_packet(payload.data, where=f"topic {route.name} at {t_ns} ns")
            if not route.takes(payload, idr=info.idr, counts=scan.counts):
                continue
            writer.packet(route.name, t_ns, payload.data, checked=info)
            fed += 1
    for route in routes.values():
        fed += _end_stream(route, writer)
    for name, media_type, t_ns, content in scan.attachments:
        writer.attach(name, media_type, content, t_ns=t_ns)
    for name, items in scan.metadata:
        writer.describe(name, items)
    if progress is not None:
        progress(total, total)
    return fed


def _end_stream(route: _Route, writer: EpisodeWriter) -> int:
    """Write what a route's decoder still holds; the next packet starts anew."""
    if route.decoder is None:
        return 0
    pictures = route.decoder.finish()
    for t_ns, picture in pictures:
        writer.frame(route.name, t_ns, picture)
    route.decoder = PictureDecoder()
    return len(pictures)


def _feed_pictures(scan: _Scan, route: _Route, writer: EpisodeWriter, t_ns: int, data: memoryview) -> int:
    if route.decoder is None:
        return 0
    pictures: list[tuple[int, Any]] = []
    try:
        payload = read_payload(route.topic.schema, route.topic.encoding, data)
        if payload.kind == "video" and payload.codec == "h264":
            idr = first_slice_is_idr(payload.data)
            if not route.takes(payload, idr=idr, counts=scan.counts):
                return 0
        pictures = route.decoder.feed(payload, t_ns)
    except CorruptError as exc:
        scan.counts["pictures_dropped"] += 1
        if len(scan.notes) < 100:
            scan.notes.append(f"topic {route.name}: {exc}")
        return 0
    for time, picture in pictures:
        writer.frame(route.name, time, picture)
    return len(pictures)


def _read_back(path: Path, receipt: Receipt, fed: int) -> None:
    with FileSource(path) as written:
        report = verify(written, sha256=receipt.sha256, size_bytes=receipt.size_bytes)
    if not report.ok:
        first = report.findings[0]
        raise CorruptError(f"{path}: the new file does not read back ({first.code}: {first.text}); the disk may be bad")
    if report.messages != fed:
        raise CorruptError(f"{path}: {report.messages} messages in the new file, {fed} were given to it")
