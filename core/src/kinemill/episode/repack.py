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

import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode.foreign import Payload, PictureDecoder, read_payload
from kinemill.episode.frame_order import FrameOrder
from kinemill.episode.h264 import check_packet
from kinemill.episode.keyframes import is_keyframe
from kinemill.episode.publishing import publish_file
from kinemill.episode.scan import FileSource, Source
from kinemill.episode.schemas import VIDEO, guess_kind
from kinemill.episode.survey import Scan, SurveyedTopic, Transcode, survey, topic_of
from kinemill.episode.topics import PROFILES, Profile, TopicSpec, profile_of
from kinemill.episode.verify import verify
from kinemill.episode.writer import EpisodeWriter
from kinemill.errors import (
    ConflictError,
    CorruptError,
    DataError,
    EnvironmentFault,
    UnsupportedError,
    UsageError,
)

__all__ = ["RepackReport", "repack"]


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


class _Route:
    """How one channel's messages go into the writer."""

    def __init__(self, topic: SurveyedTopic, name: str) -> None:
        self.topic = topic
        self.name = name
        self.way: Literal["packet", "picture", "message"] = "message"
        if topic.payload is not None:
            depth = topic.payload.codec in ("depth", "png16") or topic.metadata.get("tg.kind") in ("depth", "tactile")
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
            idr: Whether it starts a GOP; None where nobody can tell.
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
        silent_camera = not topic.messages and kind is TopicKind.VIDEO and topic.schema == VIDEO
        if self.way != "message" or silent_camera:
            kind = TopicKind.VIDEO
        elif topic.payload is not None:
            kind = TopicKind.DEPTH if told is None else kind
        elif kind is TopicKind.VIDEO:
            kind = TopicKind.OTHER
        extra = {k: v for k, v in topic.metadata.items() if k not in ("tg.group", "tg.kind", "rate_hz", "units")}
        if kind is TopicKind.VIDEO:
            extra.pop("codec", None)
        plain: dict[str, Any] = {}
        if self.way == "message" and not silent_camera:
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
            width=topic.width if self.way == "message" else None,
            height=topic.height if self.way == "message" else None,
            names=topic.names,
            fields=topic.fields or ("position",),
            units=topic.metadata.get("units"),
            group=topic.metadata.get("tg.group"),
            metadata=extra,
            **plain,
        )


def _routes(topics: Mapping[int, SurveyedTopic], transcode: Transcode, clashes: str) -> dict[int, _Route]:
    routes: dict[int, _Route] = {}
    taken: dict[str, SurveyedTopic] = {}
    names = {topic.name for topic in topics.values()}
    for channel, topic in sorted(topics.items()):
        name = topic.name
        first = taken.get(name)
        if first is not None and (first.schema, first.encoding) != (topic.schema, topic.encoding):
            if clashes != "rename":
                raise UnsupportedError(
                    f"two topics are named {name}: one of {first.schema} ({first.encoding}), one of {topic.schema} "
                    f"({topic.encoding}); allow renaming the second (--rename-clashes)"
                )
            while name in taken or name in names:
                name += "_2"
        elif first is not None and topic.payload is not None:
            raise UnsupportedError(f"two publishers of camera topic {name}; their streams cannot be told apart")
        if topic.pieces * 10 > topic.messages:
            raise UnsupportedError(
                f"topic {name}: its messages are not one whole frame each ({topic.why_not}), so nobody knows when its "
                "pictures were taken; record it anew, or convert the stream first"
            )
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
    if not target.parent.is_dir():
        raise EnvironmentFault(f"{target}: there is no folder {target.parent}; make it first")
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
    scan = Scan(source)
    topics = survey(scan, transcode)
    if not topics and (scan.counts["bytes_cut"] or scan.counts["chunks_dropped"]):
        raise CorruptError(f"{source.name}: no complete chunk in it, nothing can be saved ({scan.notes[-1]})")
    for number, (_, name, _, metadata) in scan.channels.items():  # topics that were promised and never came
        if number not in topics and metadata.get("tg.kind") in set(TopicKind):
            topics[number] = topic_of(scan, number)
            scan.notes.append(f"topic {name} has no message")
    routes = _routes(topics, transcode, clashes)
    chosen = profile if profile is not None else _own_profile(scan.layout)
    specs = {route.name: route.spec() for route in routes.values()}
    notes = [f"topic {r.name} is kept as it is: {r.topic.kept}" for r in routes.values() if r.topic.kept]
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}.repack")
    writer = EpisodeWriter(
        temporary,
        episode_id=episode_id or scan.layout.get("episode_id") or uuid.uuid4(),
        profile=_with_gops(profile_of(chosen), scan, routes.values()),
        topics=list(specs.values()),
    )
    try:
        with writer:
            fed = _feed(scan, routes, writer, sum(t.messages for t in topics.values()), progress)
        receipt = writer.receipt
        if receipt is None:
            raise CorruptError(f"{source.name}: nothing was written")
        _read_back(temporary, receipt, fed)
        publish_file(temporary, target)
    except FileExistsError as exc:
        raise ConflictError(f"{target}: exists already; nothing is overwritten") from exc
    finally:
        temporary.unlink(missing_ok=True)
    counts = {**scan.counts, **receipt.counts}
    transcoded = sum(r.way == "picture" for r in routes.values())
    counts.update({"topics_encoded_anew": transcoded} if transcoded else {})
    notes += scan.notes + [f"topic {r.name} was encoded anew: {r.topic.why_not}" for r in routes.values() if r.decoder]
    return RepackReport(
        receipt,
        sum(t.messages for t in topics.values()),
        sum(g.messages for g in receipt.groups),
        counts,
        notes,
    )


def _with_gops(profile: Profile, scan: Scan, routes: Iterable[_Route]) -> Profile:
    """The profile with the length of GOP that packets have which are passed through: nothing here decides that."""
    topics = [r.topic for r in routes if r.way == "packet"]
    if not topics or any(r.way == "picture" for r in routes):
        return profile
    told = scan.layout.get("gop_frames", "")
    found = int(told) if told.isdecimal() else max(t.longest_gop for t in topics)
    return replace(profile, gop_frames=min(max(found, 1), 1000))


def _own_profile(layout: Mapping[str, str]) -> Profile:
    """The profile that a recording of ours was made with, overrides too, as `tg.layout` tells them."""
    name = layout.get("profile", "vla")
    base = PROFILES.get(name, PROFILES["vla"])
    told: dict[str, Any] = {}
    for field_name, key in (("gop_frames", "gop_frames"), ("span_ns", "cut.span_ns"), ("reorder_ns", "reorder_ns")):
        if layout.get(key, "").isdecimal():
            told[field_name] = int(layout[key])
    encoder = re.fullmatch(r"libx264 preset=(\w+) tune=(\w+) crf=(\d+(?:\.\d+)?)", layout.get("encoder", ""))
    if encoder is not None:
        tune = None if encoder[2] == "None" else encoder[2]
        told.update(preset=encoder[1], tune=tune, crf=float(encoder[3]))
    cut = layout.get("cut.video", "")
    whole = re.fullmatch(r"whole GOPs to (\d+) bytes", cut)
    if cut == "one GOP" or whole is not None:
        told["chunk_bytes"] = 0 if whole is None else int(whole[1])
    try:
        return replace(base, name=name, **told)
    except UsageError as exc:
        raise CorruptError(f"tg.layout says what no writer wrote ({exc}); name a profile (--profile)") from exc


def _feed(
    scan: Scan,
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
            payload = _payload(route, t_ns, data)
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


def _payload(route: _Route, t_ns: int, data: memoryview) -> Payload:
    try:
        return read_payload(route.topic.schema, route.topic.encoding, data)
    except DataError as exc:
        raise type(exc)(f"topic {route.name} at {t_ns} ns: {exc}") from exc


def _feed_pictures(scan: Scan, route: _Route, writer: EpisodeWriter, t_ns: int, data: memoryview) -> int:
    if route.decoder is None:
        return 0
    pictures: list[tuple[int, Any]] = []
    try:
        payload = _payload(route, t_ns, data)
        if payload.kind == "video":
            idr = is_keyframe(payload.codec, payload.data)
            try:
                if not route.takes(payload, idr=idr, counts=scan.counts):
                    return 0
            except UnsupportedError as exc:
                route.hole()
                raise CorruptError(f"at {t_ns} ns: {exc}") from exc
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
