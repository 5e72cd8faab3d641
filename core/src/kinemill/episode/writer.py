"""Write an episode: topic groups in a valid MCAP, in one pass and bounded memory.

The first camera group streams into the file. Every other group is spooled to a temporary file
beside it and appended at the end, so that each group is one contiguous range. In live mode nothing
is spooled: chunks of all groups interleave and reach the disk within a second; `repack` puts such
a file in order.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import numpy as np

from kinemill import records
from kinemill.contracts.episode import ChunkTable, GopTable, GroupReceipt, Receipt, TopicKind, TopicReceipt
from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.chunks import BuiltChunk
from kinemill.episode.groups import SpanGroup, VideoGroup
from kinemill.episode.h264 import PacketInfo, check_packet
from kinemill.episode.hashing import StreamHash
from kinemill.episode.index import index_attachment
from kinemill.episode.layout import run_lengths
from kinemill.episode.messages import audio_message, depth_message, event_message, points_message, text_message
from kinemill.episode.schemas import JOINT_STATE, VIDEO, SchemaText, schema_for
from kinemill.episode.topics import NS, Profile, TopicSpec, group_of, profile_of
from kinemill.errors import StateError, UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["EpisodeWriter", "writer_name"]

ALIGN_FROM: Final = 4 << 20
"""Chunks of this size and more start on `ALIGN_TO` boundaries: a cache page then holds no second chunk's edge."""
ALIGN_TO: Final = 1 << 20
LIVE_CUT_NS: Final = NS
_SPOOL_MEMORY: Final = 4 << 20
_PUMP_NS: Final = NS // 10
_PUMP_ITEMS: Final = 512
_MAX_TIME: Final = (1 << 63) - 1


def writer_name() -> str:
    """Name and version that a file's header carries."""
    try:
        return f"kinemill {version('kinemill-core')}"
    except PackageNotFoundError:
        return "kinemill"


class _Out:
    """The file: counts, hashes, and never seeks."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.at = 0
        self.hash = StreamHash()

    def write(self, data: bytes) -> None:
        written = self._stream.write(data)
        if written is not None and written != len(data):
            raise StateError(f"the sink took {written} of {len(data)} bytes")
        self.hash.update(data)
        self.at += len(data)


@dataclass(slots=True)
class _Placed:
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


class EpisodeWriter:
    """Writes one episode.

    Args:
        sink: A path (written under a temporary name, fsynced, renamed) or a binary stream that is
            only appended to. Publishing to a store is the caller's.
        episode_id: UUID of the episode.
        profile: `vla`, `world`, or a `Profile`.
        topics: Every topic that the recording may have. The order decides channel ids.
        live: Interleave groups and make all data durable within about a second.
        metadata: Extra keys for the file's `tg.layout` metadata, such as the robot's name.

    Example:
        >>> with EpisodeWriter(path, episode_id=uid, profile="vla", topics=specs) as writer:
        ...     writer.frame("/cam/front", t_ns, rgb)  # uint8 [H, W, 3]
        ...     writer.rows("/joint_states", t_ns, positions)
        >>> writer.receipt.sha256

    Calls come roughly in the order of time; what is later than the profile's `reorder_ns` against
    its group goes into a later chunk, keeps its true time, and is counted. One thread calls.
    """

    def __init__(
        self,
        sink: Path | IO[bytes],
        *,
        episode_id: uuid.UUID | str,
        profile: str | Profile = "vla",
        topics: Sequence[TopicSpec],
        live: bool = False,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.episode_id = str(uuid.UUID(str(episode_id)))
        self.profile = profile_of(profile)
        self.live = live
        self.receipt: Receipt | None = None
        self._specs = list(topics)
        self._metadata = dict(metadata or {})
        names = Counter(s.topic for s in self._specs)
        if twice := [name for name, n in names.items() if n > 1]:
            raise UsageError(f"topics declared twice: {', '.join(twice)}")
        if len(self._specs) > 60_000:
            raise UsageError(f"{len(self._specs)} topics; MCAP numbers channels with 16 bits")
        self._schemas = [schema_for(s) for s in self._specs]
        self._make_groups()
        self._messages: Counter[str] = Counter()
        self._sizes: dict[str, tuple[int, int]] = {}
        self._attachments: list[tuple[str, str, bytes, int]] = []
        self._described: list[tuple[str, dict[str, str]]] = []
        self._metadata_index: list[bytes] = []
        self._counts: Counter[str] = Counter()
        self._pumped: dict[str, tuple[int, int]] = {}
        self._state = "new"
        self._dirty = 0
        self._stream: IO[bytes]
        self._path: Path | None = None
        self._temporary: Path | None = None
        if isinstance(sink, str | os.PathLike):
            self._path = Path(sink)
            self._temporary = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}.part")
            self._stream = self._temporary.open("xb")
        else:
            self._stream = sink
        self._out = _Out(self._stream)
        self._spools: dict[str, IO[bytes]] = {}
        self._spooled: dict[str, list[BuiltChunk]] = {name: [] for name in self._groups}
        self._placed: dict[str, _Placed] = {name: _Placed() for name in self._groups}
        self._streaming = next(iter(self._groups), None)

    def _make_groups(self) -> None:
        members: dict[str, list[int]] = {}
        for i, spec in enumerate(self._specs):
            members.setdefault(group_of(spec), []).append(i)
        video = [n for n, m in members.items() if any(self._specs[i].kind is TopicKind.VIDEO for i in m)]
        # cameras first, state last: what is streamed leads, what most samples read ends the file
        order = sorted(members, key=lambda name: (name not in video, name == "state", list(members).index(name)))
        self._groups: dict[str, VideoGroup | SpanGroup] = {}
        self._where: dict[str, tuple[VideoGroup | SpanGroup, int]] = {}
        for name in order:
            specs = [self._specs[i] for i in members[name]]
            channels = [i + 1 for i in members[name]]
            kinds = {s.kind is TopicKind.VIDEO and s.schema in (None, VIDEO) for s in specs}
            if len(kinds) > 1:
                raise UsageError(f"group {name} mixes cameras with other topics; groups never share a chunk")
            group: VideoGroup | SpanGroup
            if kinds == {True}:
                group = VideoGroup(name, specs, channels, self.profile, live_ns=LIVE_CUT_NS if self.live else None)
            else:
                group = SpanGroup(name, specs, channels, self.profile)
            self._groups[name] = group
            for position, spec in enumerate(specs):
                self._where[spec.topic] = (group, position)

    # -- input

    def _find(self, topic: str, t_ns: int) -> tuple[VideoGroup | SpanGroup, int]:
        if self._state not in ("new", "open"):
            raise StateError(f"episode {self.episode_id}: the writer is {self._state}")
        found = self._where.get(topic)
        if found is None:
            close = records.nearest(topic, self._where)
            raise UsageError(f"topic {topic} was not declared" + (f"; did you mean {close}?" if close else ""))
        if not 0 <= t_ns <= _MAX_TIME:
            raise UsageError(f"topic {topic}: time {t_ns} ns; MCAP times are 0 to 2^63 - 1 ns")
        if self._state == "new":
            self._begin()
        return found

    def frame(self, topic: str, t_ns: int, image: Any) -> None:
        """One image of a camera (encoded here), or of a depth or tactile image topic (lossless).

        Args:
            topic: A VIDEO, DEPTH or TACTILE topic.
            t_ns: Time on the episode's own clock, ns.
            image: uint8 [H, W, 3] (or as the topic's `pixel_format` says) or `av.VideoFrame`;
                uint16 [H, W] for depth. The array may be reused after the call.
        """
        t_ns = int(t_ns)
        group, at = self._find(topic, t_ns)
        spec = group.specs[at]
        if isinstance(group, VideoGroup):
            group.frame(at, t_ns, image)
        elif spec.kind in (TopicKind.DEPTH, TopicKind.TACTILE) and spec.schema is None and not spec.names:
            payload, size = depth_message(spec, t_ns, image)
            if self._sizes.setdefault(topic, size) != size:
                raise UsageError(f"topic {topic}: an image of {size} after {self._sizes[topic]} (width, height)")
            group.message(at, t_ns, payload)
        else:
            raise UsageError(f"topic {topic} is of kind {spec.kind.value}: it takes no images")
        self._wrote(group, topic, t_ns, 1)

    def packet(self, topic: str, t_ns: int, annexb: bytes, *, checked: PacketInfo | None = None) -> None:
        """One H.264 access unit, stored as it is if it meets the format's rules.

        Args:
            topic: A camera.
            t_ns: Time on the episode's own clock, ns; packets of a camera come in this order.
            annexb: The access unit.
            checked: What `kinemill.episode.h264.check_packet` said of it, if that was asked already.

        Raises:
            UnsupportedError: It breaks a rule (not Annex B, not exactly one frame, no SPS and PPS
                with an IDR, B slices, not 8-bit 4:2:0, interlaced); the message says which.
        """
        t_ns = int(t_ns)
        group, at = self._find(topic, t_ns)
        if not isinstance(group, VideoGroup):
            raise UsageError(f"topic {topic} is of kind {group.specs[at].kind.value}: it takes no video packets")
        data = bytes(annexb)
        info = checked or check_packet(data, where=f"topic {topic} at {t_ns} ns")
        if info.sps is not None:
            size = (info.sps.width, info.sps.height)
            spec = group.specs[at]
            expected = (spec.width or size[0], spec.height or size[1])
            if self._sizes.setdefault(topic, size) != size or expected != size:
                raise UsageError(f"topic {topic} at {t_ns} ns: pictures of {size} in a stream of {expected}")
        group.packet(at, t_ns, data, idr=info.idr)
        self._wrote(group, topic, t_ns, 1)

    def rows(self, topic: str, t_ns: ArrayLike, values: ArrayLike) -> None:
        """One row or many of a state topic.

        Args:
            topic: A topic with `names`.
            t_ns: int, or int64 [n].
            values: float [columns], or float [n, columns]; columns as `TopicSpec.columns`.
        """
        times = np.atleast_1d(np.asarray(t_ns, np.int64))
        table = np.asarray(values, np.float64)
        if table.ndim == 1:
            table = table.reshape(len(times), -1) if len(times) else table.reshape(0, 0)
        if not len(times):
            return
        if int(times.min()) < 0:
            raise UsageError(f"topic {topic}: a time of {int(times.min())} ns; MCAP times start at 0")
        group, at = self._find(topic, int(times.max()))
        if not isinstance(group, SpanGroup):
            raise UsageError(f"topic {topic} is of kind {group.specs[at].kind.value}: it takes no rows")
        group.rows(at, times.copy(), table.copy())
        self._wrote(group, topic, int(times.max()), len(times))

    def message(self, topic: str, t_ns: int, payload: bytes) -> None:
        """One message as it is, for a topic that names its own `schema` and `encoding`."""
        t_ns = int(t_ns)
        group, at = self._find(topic, t_ns)
        if not isinstance(group, SpanGroup):
            raise UsageError(f"topic {topic} is a camera: use .frame or .packet")
        if group.specs[at].schema is None:
            raise UsageError(f"topic {topic}: .message needs a TopicSpec with `schema` and `encoding`")
        group.message(at, t_ns, bytes(payload))
        self._wrote(group, topic, t_ns, 1)

    def audio(self, topic: str, t_ns: int, samples: ArrayLike, sample_rate: int) -> None:
        """A block of PCM, int16 [n] or [n, channels]; `t_ns` is that of its first sample."""
        self._made(topic, t_ns, TopicKind.AUDIO, lambda spec: audio_message(spec, int(t_ns), samples, sample_rate))

    def points(self, topic: str, t_ns: int, points: ArrayLike) -> None:
        """A point cloud, float32 [n, 3] (x, y, z in metres) or [n, 4] (with intensity)."""
        self._made(topic, t_ns, TopicKind.LIDAR, lambda spec: points_message(spec, int(t_ns), points))

    def text(self, topic: str, t_ns: int, text: str) -> None:
        """A line of text: a language instruction (TEXT) or an event (EVENT)."""
        group, at = self._find(topic, int(t_ns))
        kind = group.specs[at].kind
        if kind is TopicKind.EVENT:
            self._made(topic, t_ns, kind, lambda spec: event_message(spec, int(t_ns), text))
        else:
            self._made(topic, t_ns, TopicKind.TEXT, lambda _: text_message(text))

    def _made(self, topic: str, t_ns: int, kind: TopicKind, make: Any) -> None:
        group, at = self._find(topic, int(t_ns))
        spec = group.specs[at]
        if spec.kind is not kind or spec.schema is not None or not isinstance(group, SpanGroup):
            raise UsageError(f"topic {topic} is of kind {spec.kind.value}, with schema {spec.schema}: not {kind.value}")
        group.message(at, int(t_ns), make(spec))
        self._wrote(group, topic, int(t_ns), 1)

    def attach(self, name: str, media_type: str, data: bytes, *, t_ns: int = 0) -> None:
        """Keep a file with the episode: a calibration, a URDF. Written at the end, with its own CRC."""
        if self._state not in ("new", "open"):
            raise StateError(f"episode {self.episode_id}: the writer is {self._state}")
        if name.startswith("tg."):
            raise UsageError(f"attachment {name}: names that start with 'tg.' belong to the format")
        self._attachments.append((name, media_type, bytes(data), int(t_ns)))

    def describe(self, name: str, items: Mapping[str, str]) -> None:
        """Keep a map of strings as an MCAP metadata record of its own."""
        if name.startswith("tg."):
            raise UsageError(f"metadata {name}: names that start with 'tg.' belong to the format")
        self._described.append((name, dict(items)))

    def note(self, what: str, times: int = 1) -> None:
        """Add to the receipt's `counts`, e.g. `dropped_frames` that the source tells of."""
        self._counts[what] += times

    # -- output

    def _wrote(self, group: VideoGroup | SpanGroup, topic: str, t_ns: int, n: int) -> None:
        self._messages[topic] += n
        newest, items = self._pumped.get(group.name, (-_PUMP_NS, 0))
        if t_ns - newest < _PUMP_NS and items < _PUMP_ITEMS:
            self._pumped[group.name] = (newest, items + n)
            return
        self._pumped[group.name] = (max(newest, t_ns), 0)
        self._pump(group, final=False)

    def _pump(self, group: VideoGroup | SpanGroup, *, final: bool) -> None:
        for chunk in group.chunks(final=final):
            if self.live or group.name == self._streaming:
                self._place(group.name, chunk, (chunk.head, chunk.data), chunk.index)
            else:
                self._spool(group.name, chunk)
        if self.live and not final:
            self._sync_live()

    def _sync_live(self) -> None:
        if self._out.at == self._dirty:
            return
        self._dirty = self._out.at
        self._stream.flush()
        with contextlib.suppress(AttributeError, OSError):  # a stream that is no file has nothing to sync
            os.fdatasync(self._stream.fileno())

    def _begin(self) -> None:
        self._state = "open"
        out = self._out
        out.write(wire.MAGIC)
        out.write(wire.record(wire.Op.HEADER, wire.string("") + wire.string(writer_name())))
        for body in self._schema_and_channel_records():
            out.write(body)
        self._write_metadata("tg.layout", self._layout_items())

    def _schema_and_channel_records(self) -> list[bytes]:
        ids: dict[SchemaText, int] = {}
        schemas, channels = [], []
        for i, (spec, schema) in enumerate(zip(self._specs, self._schemas, strict=True)):
            key = schema
            if key not in ids and (schema.name or schema.data):
                ids[key] = len(ids) + 1
                body = struct.pack("<H", ids[key]) + wire.string(schema.name) + wire.string(schema.encoding)
                body += struct.pack("<I", len(schema.data)) + schema.data
                schemas.append(wire.record(wire.Op.SCHEMA, body))
            known = {
                "tg.group": group_of(spec),
                "tg.kind": spec.kind.value,
                "rate_hz": "" if spec.rate_hz is None else f"{spec.rate_hz:g}",
                "units": spec.units or "",
                "codec": _codec(spec) or "",
            }
            body = struct.pack("<HH", i + 1, ids.get(key, 0)) + wire.string(spec.topic)
            body += wire.string(schema.message_encoding)
            body += wire.string_map({**spec.metadata, **{k: v for k, v in known.items() if v}})
            channels.append(wire.record(wire.Op.CHANNEL, body))
        self._head_records = (len(schemas), schemas, channels)
        return schemas + channels

    def _write_metadata(self, name: str, items: Mapping[str, str]) -> None:
        whole = wire.record(wire.Op.METADATA, wire.string(name) + wire.string_map(items))
        entry = struct.pack("<QQ", self._out.at, len(whole)) + wire.string(name)
        self._metadata_index.append(wire.record(wire.Op.METADATA_INDEX, entry))
        self._out.write(whole)

    def _layout_items(self) -> dict[str, str]:
        profile = self.profile
        return {
            **self._metadata,
            "version": "1",
            "episode_id": self.episode_id,
            "profile": profile.name,
            "live": "true" if self.live else "false",
            "gop_frames": str(profile.gop_frames),
            "cut.video": "one GOP" if profile.chunk_bytes == 0 else f"whole GOPs to {profile.chunk_bytes} bytes",
            "cut.span_ns": str(profile.span_ns),
            "reorder_ns": str(profile.reorder_ns),
            "encoder": f"libx264 preset={profile.preset} tune={profile.tune} crf={profile.crf:g}",
            "groups": records.dumps({g.name: [s.topic for s in g.specs] for g in self._groups.values()}),
        }

    def _place(self, name: str, chunk: BuiltChunk, record: tuple[bytes, ...], index: bytes) -> None:
        out = self._out
        length = sum(len(part) for part in record)
        if length >= ALIGN_FROM and (gap := -out.at % ALIGN_TO):
            out.write(wire.padding(gap if gap >= wire.RECORD_HEAD.size else gap + ALIGN_TO))
        placed = self._placed[name]
        number = len(placed.offset)
        placed.offset.append(out.at)
        placed.length.append(length)
        placed.t_first.append(chunk.t_first_ns)
        placed.t_last.append(chunk.t_last_ns)
        placed.crc.append(chunk.crc)
        placed.counts.append(chunk.counts)
        placed.index.append((chunk.index_at, len(index), chunk.compression, chunk.data_size, chunk.raw_size))
        placed.skew_ns = max(placed.skew_ns, chunk.skew_ns)
        placed.gops += [(number, t, n) for t, n in chunk.gops]
        for part in record:
            out.write(part)
        out.write(index)
        placed.end = out.at

    def _spool(self, name: str, chunk: BuiltChunk) -> None:
        spool = self._spools.get(name)
        if spool is None:
            folder = None if self._temporary is None else str(self._temporary.parent)
            spool = self._spools[name] = tempfile.SpooledTemporaryFile(_SPOOL_MEMORY, dir=folder)  # noqa: SIM115
        spool.write(chunk.head)
        spool.write(chunk.data)
        spool.write(chunk.index)
        sizes = struct.pack("<QQ", len(chunk.head) + len(chunk.data), len(chunk.index))
        self._spooled[name].append(replace(chunk, head=b"", data=b"", index=sizes))

    def _append_spools(self) -> None:
        for name in self._groups:
            spool = self._spools.pop(name, None)
            if spool is None:
                continue
            with spool:
                spool.seek(0)
                for chunk in self._spooled[name]:
                    record_size, index_size = struct.unpack("<QQ", chunk.index)
                    self._place(name, chunk, (spool.read(record_size),), spool.read(index_size))
            self._spooled[name].clear()

    # -- the end

    def close(self) -> Receipt:
        """Write what is left, the indexes and the footer; make the file durable and give it its name.

        Returns:
            The receipt. A second call returns the same.

        Raises:
            KinemillError: The file could not be completed; nothing stands under its name.
        """
        if self.receipt is not None:
            return self.receipt
        if self._state in ("closed", "aborted"):
            raise StateError(f"episode {self.episode_id}: the writer is {self._state}")
        try:
            return self._close()
        except BaseException:
            self.abort()
            raise

    def _close(self) -> Receipt:
        if self._state == "new":
            self._begin()
        for group in self._groups.values():
            self._pump(group, final=True)
        self._append_spools()
        for group in self._groups.values():
            self._counts.update(group.counts)
        for name, items in self._described:
            self._write_metadata(name, items)
        draft = self._draft()
        attachments = [*self._attachments, ("tg.index", "application/x-kinemill-index", index_attachment(draft), 0)]
        attachment_index = [self._write_attachment(*a) for a in attachments]
        out = self._out
        out.write(wire.record(wire.Op.DATA_END, struct.pack("<I", out.hash.crc())))
        self._write_summary(draft, attachment_index)
        self._stream.flush()
        if self._temporary is not None and self._path is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._temporary.rename(self._path)
            _fsync_folder(self._path.parent)
        self._state = "closed"
        self.receipt = replace(draft, size_bytes=out.at, sha256=out.hash.hexdigest())
        return self.receipt

    def _write_attachment(self, name: str, media_type: str, data: bytes, t_ns: int) -> bytes:
        body = struct.pack("<QQ", t_ns, t_ns) + wire.string(name) + wire.string(media_type)
        body += struct.pack("<Q", len(data)) + data
        whole = wire.record(wire.Op.ATTACHMENT, body + struct.pack("<I", crc32(body)))
        at = self._out.at
        self._out.write(whole)
        entry = struct.pack("<QQQQQ", at, len(whole), t_ns, t_ns, len(data)) + wire.string(name)
        return wire.record(wire.Op.ATTACHMENT_INDEX, entry + wire.string(media_type))

    def _draft(self) -> Receipt:
        """The receipt without size and sha256, which are only known at the very end."""
        groups = []
        channel = {s.topic: i + 1 for i, s in enumerate(self._specs)}
        schema = {s.topic: self._schemas[i] for i, s in enumerate(self._specs)}
        for name, group in self._groups.items():
            placed = self._placed[name]
            counts = np.array(placed.counts, np.int64).reshape(-1, len(group.specs)).T
            totals = counts.sum(axis=1).tolist()
            topics = []
            for spec, total in zip(group.specs, totals, strict=True):
                size = self._size_of(group, spec)
                topics.append(
                    TopicReceipt(
                        spec.topic,
                        spec.kind,
                        channel[spec.topic],
                        schema[spec.topic].name,
                        schema[spec.topic].message_encoding,
                        int(total),
                        None if spec.rate_hz is None else float(spec.rate_hz),
                        _codec(spec),
                        *size,
                        spec.names,
                        spec.units,
                        spec.fields if spec.names and schema[spec.topic].name == JOINT_STATE else (),
                    )
                )
            table = ChunkTable(
                tuple(placed.offset),
                tuple(placed.length),
                tuple(placed.t_first),
                tuple(placed.t_last),
                tuple(sum(c) for c in placed.counts),
                tuple(placed.crc),
                tuple(run_lengths(row) for row in counts),
            )
            several = isinstance(group, VideoGroup) and (self.live or len(placed.gops) != len(placed.offset))
            gops = None
            if several:
                gops = GopTable(*(tuple(g[i] for g in placed.gops) for i in range(3)))
            groups.append(
                GroupReceipt(
                    name,
                    tuple(topics),
                    placed.offset[0] if placed.offset else 0,
                    placed.end - placed.offset[0] if placed.offset else 0,
                    int(sum(totals)),
                    min(placed.t_first, default=0),
                    max(placed.t_last, default=0),
                    table,
                    gops,
                    group.late,
                    placed.skew_ns,
                )
            )
        filled = [g for g in groups if g.messages]
        return Receipt(
            self.episode_id,
            self.profile.name,
            0,
            "",
            min((g.t_first_ns for g in filled), default=0),
            max((g.t_last_ns for g in filled), default=0),
            tuple(groups),
            self.profile.gop_frames if any(isinstance(g, VideoGroup) for g in self._groups.values()) else None,
            tuple(s.topic for s in self._specs if not self._messages[s.topic]),
            {k: v for k, v in sorted(self._counts.items()) if v},
            writer_name(),
        )

    def _size_of(self, group: VideoGroup | SpanGroup, spec: TopicSpec) -> tuple[int | None, int | None]:
        if isinstance(group, VideoGroup):
            size = group.size_of(spec.topic) or self._sizes.get(spec.topic)
        else:
            size = self._sizes.get(spec.topic)
        return size if size is not None else (spec.width, spec.height)

    def _write_summary(self, draft: Receipt, attachment_index: list[bytes]) -> None:
        _, schemas, channels = self._head_records
        chunk_indexes = []
        for name in self._groups:
            placed = self._placed[name]
            for i in range(len(placed.offset)):
                index_at, index_size, compression, data_size, raw_size = placed.index[i]
                base = placed.offset[i] + placed.length[i]
                absolute = tuple((channel, base + at) for channel, at in index_at)
                chunk_indexes.append(
                    wire.chunk_index(
                        placed.t_first[i],
                        placed.t_last[i],
                        offset=placed.offset[i],
                        length=placed.length[i],
                        index_offsets=absolute,
                        index_length=index_size,
                        compression=compression,
                        data_size=data_size,
                        raw_size=raw_size,
                    )
                )
        totals = [(t.channel_id, t.messages) for g in draft.groups for t in g.topics if t.messages]
        statistics = struct.pack(
            "<QHIIIIQQI",
            sum(n for _, n in totals),
            len(schemas),
            len(channels),
            len(attachment_index),
            len(self._metadata_index),
            len(chunk_indexes),
            draft.t_first_ns,
            draft.t_last_ns,
            10 * len(totals),
        ) + b"".join(struct.pack("<HQ", *pair) for pair in sorted(totals))
        sections = [
            (wire.Op.SCHEMA, schemas),
            (wire.Op.CHANNEL, channels),
            (wire.Op.STATISTICS, [wire.record(wire.Op.STATISTICS, statistics)]),
            (wire.Op.METADATA_INDEX, self._metadata_index),
            (wire.Op.ATTACHMENT_INDEX, attachment_index),
            (wire.Op.CHUNK_INDEX, chunk_indexes),
        ]
        start = at = self._out.at
        body, offsets = [], []
        for op, items in sections:
            if items:
                section = b"".join(items)
                offsets.append(wire.record(wire.Op.SUMMARY_OFFSET, struct.pack("<BQQ", op, at, len(section))))
                body.append(section)
                at += len(section)
        whole = b"".join(body + offsets) + wire.RECORD_HEAD.pack(wire.Op.FOOTER, 20) + struct.pack("<QQ", start, at)
        self._out.write(whole + struct.pack("<I", crc32(whole)) + wire.MAGIC)

    def abort(self) -> None:
        """Give up: stop threads, remove temporary files. Nothing stands under the path."""
        if self._state in ("closed", "aborted"):
            return
        self._state = "aborted"
        for group in self._groups.values():
            group.abort()
        for spool in self._spools.values():
            spool.close()
        self._spools.clear()
        self._out.hash.stop()
        if self._temporary is not None:
            self._stream.close()
            self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


def _codec(spec: TopicSpec) -> str | None:
    if spec.kind is TopicKind.VIDEO:
        return "h264"
    if spec.kind is TopicKind.DEPTH and spec.schema is None:
        return "16UC1"
    return None


def _fsync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
