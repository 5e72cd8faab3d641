"""Write an episode: topic groups in a valid MCAP, in one pass and bounded memory.

The first camera group streams into the file. Every other group is spooled to a temporary file
beside it and appended at the end, so that each group is one contiguous range. In live mode nothing
is spooled: chunks of all groups interleave and reach the disk within a second; `repack` puts such
a file in order.
"""

from __future__ import annotations

import contextlib
import logging
import os
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self

import numpy as np

from kinemill import records
from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode.container import Container
from kinemill.episode.drafting import draft_receipt, layout_items
from kinemill.episode.h264 import PacketInfo, check_packet
from kinemill.episode.index import index_attachment
from kinemill.episode.messages import (
    audio_message,
    depth_message,
    event_message,
    image_encoding,
    points_message,
    text_message,
)
from kinemill.episode.schemas import VIDEO, schema_for
from kinemill.episode.span_group import SpanGroup
from kinemill.episode.spool import Spools, close_quietly
from kinemill.episode.topics import NS, Profile, TopicSpec, codec_of, group_of, profile_of
from kinemill.episode.video_group import VideoGroup
from kinemill.errors import EnvironmentFault, LimitError, StateError, UsageError
from kinemill.store.files import fsync_folder

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["EpisodeWriter", "writer_name"]

LIVE_CUT_NS: Final = NS
_LIVE_WAIT_NS: Final = LIVE_CUT_NS + NS // 2
"""Beside the reorder window: a group that is written to at 10 Hz and more never waits that long."""
_LOG: Final = logging.getLogger(__name__)
_PUMP_NS: Final = NS // 10
_PUMP_ITEMS: Final = 512
_MAX_TIME: Final = (1 << 63) - 1
_MAX_ATTACHMENT: Final = 1000 << 20  # readers refuse records of more than 1 GiB


def writer_name() -> str:
    """Name and version that a file's header carries."""
    try:
        return f"kinemill {version('kinemill-core')}"
    except PackageNotFoundError:
        return "kinemill"


class EpisodeWriter:
    """Writes one episode.

    Args:
        sink: A path (written under a temporary name, fsynced, renamed) or a binary stream that is
            only appended to. Publishing to a store is the caller's.
        episode_id: UUID of the episode.
        profile: `vla`, `world`, or a `Profile`.
        topics: Every topic that the recording may have. The order decides channel ids.
        live: Interleave groups, and make all data durable within about two seconds of the recording's time. What
            there is stays on the disk, under the temporary name, where the recording ends in an error or Ctrl-C.
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
        self._sizes: dict[str, tuple[int, int]] = {}
        self._encodings: dict[str, str] = {}
        self._attachments: list[tuple[str, str, bytes, int]] = []
        self._described: list[tuple[str, dict[str, str]]] = []
        self._counts: Counter[str] = Counter()
        self._pumped = dict.fromkeys(self._groups, (-_PUMP_NS, 0))
        self._newest = -1
        self._waits_since: dict[str, int] = {}
        """Live: the recording's time when each group's oldest message that is not written came, or earlier."""
        self._state = "new"
        self._stream: IO[bytes]
        self._path: Path | None = None
        self._temporary: Path | None = None
        if isinstance(sink, str | os.PathLike):
            self._path = Path(sink)
            self._temporary = self._path.with_name(f".{self._path.name}.{uuid.uuid4().hex[:8]}.part")
            try:
                self._stream = self._temporary.open("xb")
            except OSError as exc:
                raise EnvironmentFault(f"{self._path}: nothing can be written there: {exc.strerror}") from exc
        else:
            self._stream = sink
        try:
            self._out = Container(self._stream, self._specs, self._schemas, list(self._groups))
        except BaseException:
            if self._temporary is not None:
                self._stream.close()
                self._temporary.unlink(missing_ok=True)
            raise
        self._spools = Spools(None if self._temporary is None else self._temporary.parent)
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

    def _must_be_open(self) -> None:
        if self._state not in ("new", "open"):
            raise StateError(f"episode {self.episode_id}: the writer is {self._state}; write the episode anew")

    def _find(self, topic: str, t_ns: int) -> tuple[VideoGroup | SpanGroup, int]:
        if self._state != "open":
            self._must_be_open()
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
                uint16 [H, W] for depth, or as its `pixel_format` says. The array may be reused after the call.
        """
        t_ns = int(t_ns)
        group, at = self._find(topic, t_ns)
        spec = group.specs[at]
        if isinstance(group, VideoGroup):
            group.frame(at, t_ns, image)
        elif spec.kind in (TopicKind.DEPTH, TopicKind.TACTILE) and spec.schema is None and not spec.names:
            encoding = image_encoding(spec, image)
            expected = codec_of(spec) or self._encodings.setdefault(topic, encoding)
            if encoding != expected:
                hint = f"; declare pixel_format {encoding!r}" if spec.kind is TopicKind.DEPTH else ""
                raise UsageError(f"topic {topic}: an image in {encoding}, the topic is in {expected}{hint}")
            payload, size = depth_message(spec, t_ns, image)
            if self._sizes.setdefault(topic, size) != size:
                raise UsageError(f"topic {topic}: an image of {size} after {self._sizes[topic]} (width, height)")
            group.message(at, t_ns, payload)
        else:
            raise UsageError(f"topic {topic} is of kind {spec.kind.value}: it takes no images")
        self._wrote(group, t_ns, 1)

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
                raise UsageError(
                    f"topic {topic} at {t_ns} ns: pictures of {size} in a stream of {expected}; "
                    "a camera that changes its size is two topics"
                )
        group.packet(at, t_ns, data, idr=info.idr)
        self._wrote(group, t_ns, 1)

    def rows(self, topic: str, t_ns: ArrayLike, values: ArrayLike) -> None:
        """One row or many of a state topic.

        Args:
            topic: A topic with `names`.
            t_ns: int, or int64 [n].
            values: float [columns], or float [n, columns]; columns as `TopicSpec.columns`.
        """
        given, table = np.atleast_1d(np.asarray(t_ns)), np.asarray(values, np.float64)
        if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
            raise UsageError(f"topic {topic}: times of {given.dtype} {given.shape}; int, or int64 [n], in ns")
        times = given.astype(np.int64)
        if not len(times):
            return
        if table.ndim == 1 and len(times) == 1:
            table = table[None]
        if int(times.min()) < 0:
            raise UsageError(f"topic {topic}: a time of {int(times.min())} ns; MCAP times start at 0")
        group, at = self._find(topic, int(times.max()))
        if not isinstance(group, SpanGroup):
            raise UsageError(f"topic {topic} is of kind {group.specs[at].kind.value}: it takes no rows")
        group.rows(at, times.copy(), table.copy())
        self._wrote(group, int(times.max()), len(times))

    def message(self, topic: str, t_ns: int, payload: bytes) -> None:
        """One message as it is, for a topic that names its own `schema` and `encoding`."""
        t_ns = int(t_ns)
        group, at = self._find(topic, t_ns)
        if not isinstance(group, SpanGroup):
            raise UsageError(f"topic {topic} is a camera: use .frame or .packet")
        if group.specs[at].schema is None:
            raise UsageError(f"topic {topic}: .message needs a TopicSpec with `schema` and `encoding`")
        group.message(at, t_ns, bytes(payload))
        self._wrote(group, t_ns, 1)

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
        self._wrote(group, int(t_ns), 1)

    def attach(self, name: str, media_type: str, data: bytes, *, t_ns: int = 0) -> None:
        """Keep a file with the episode: a calibration, a URDF. Written at the end, with its own CRC."""
        self._must_be_open()
        if name.startswith("tg."):
            raise UsageError(f"attachment {name}: names that start with 'tg.' belong to the format")
        if not 0 <= t_ns <= _MAX_TIME:
            raise UsageError(f"attachment {name}: time {t_ns} ns; MCAP times are 0 to 2^63 - 1 ns")
        if len(data) > _MAX_ATTACHMENT:
            raise LimitError(f"attachment {name}: {len(data) >> 20} MiB; at most {_MAX_ATTACHMENT >> 20} MiB are read")
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

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """What fails halfway through this leaves no file that could be gone on with."""
        try:
            yield
        except OSError as exc:
            self._state = "failed"
            place = "the sink" if self._path is None else str(self._path)
            raise EnvironmentFault(
                f"{place}: {exc.strerror or exc}, after {self._out.at >> 20} MiB; make room or mend the disk"
                + (", then save what there is with `kinemill episode repack`" if self.live else ", then write it anew")
            ) from exc
        except BaseException:
            self._state = "failed"
            raise

    def _wrote(self, group: VideoGroup | SpanGroup, t_ns: int, n: int) -> None:
        if self.live:
            self._newest = max(self._newest, t_ns)
            self._waits_since.setdefault(group.name, self._newest)
        newest, items = self._pumped[group.name]
        if t_ns - newest < _PUMP_NS and items < _PUMP_ITEMS:
            self._pumped[group.name] = (newest, items + n)
            return
        self._pumped[group.name] = (max(newest, t_ns), 0)
        with self._writing():
            self._pump(group, final=False)
            if self.live:
                self._flush_waiting()

    def _flush_waiting(self) -> None:
        """Write what only the group's own next message would have pushed out, where that does not come."""
        for name, since in list(self._waits_since.items()):
            if self._newest - since > _LIVE_WAIT_NS + self.profile.reorder_ns:
                group = self._groups[name]
                for chunk in group.flush():
                    self._out.place(name, chunk, (chunk.head, chunk.data), chunk.index)
                del self._waits_since[name]
                if isinstance(group, VideoGroup):  # its encoders may still have some
                    self._waits_since[name] = self._newest
        self._out.sync()

    def _pump(self, group: VideoGroup | SpanGroup, *, final: bool) -> None:
        for chunk in group.chunks(final=final):
            if self.live or group.name == self._streaming:
                self._out.place(group.name, chunk, (chunk.head, chunk.data), chunk.index)
                self._waits_since[group.name] = self._newest
            else:
                self._spools.add(group.name, chunk)

    def _begin(self) -> None:
        with self._writing():
            self._out.head(writer_name())
            items = layout_items(self.episode_id, self.profile, list(self._groups.values()), live=self.live)
            self._out.metadata("tg.layout", {**self._metadata, **items})
            self._state = "open"

    # -- the end

    def close(self) -> Receipt:
        """Write what is left, the indexes and the footer; make the file durable and give it its name.

        Returns:
            The receipt. A second call returns the same.

        Raises:
            KinemillError: The file could not be completed; nothing stands under its name.
            EnvironmentFault: No room, or the disk fails.
        """
        if self.receipt is not None:
            return self.receipt
        if self._state not in ("new", "open"):
            state = self._state
            self._give_up()
            raise StateError(f"episode {self.episode_id}: the writer is {state}; write the episode anew")
        try:
            with self._writing():
                return self._close()
        except BaseException as exc:
            self._give_up(exc)
            raise

    def _close(self) -> Receipt:
        if self._state == "new":
            self._begin()
        for group in self._groups.values():
            self._pump(group, final=True)
        for name in self._groups:
            for chunk, record, index in self._spools.take(name):
                self._out.place(name, chunk, (record,), index)
        for group in self._groups.values():
            self._counts.update(group.counts)
        out = self._out
        for name, items in self._described:
            out.metadata(name, items)
        draft = draft_receipt(
            self.episode_id,
            self.profile,
            specs=self._specs,
            schemas=self._schemas,
            groups=self._groups,
            placed=out.placed,
            sizes=self._sizes,
            counts=self._counts,
            live=self.live,
            writer=writer_name(),
        )
        for attachment in self._attachments:
            out.attachment(*attachment)
        out.attachment("tg.index", "application/x-kinemill-index", index_attachment(draft), 0)
        totals = [(t.channel_id, t.messages) for g in draft.groups for t in g.topics if t.messages]
        sha256 = out.end(totals, draft.t_first_ns, draft.t_last_ns)
        self._stream.flush()
        if self._temporary is not None and self._path is not None:
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._temporary.rename(self._path)
            fsync_folder(self._path.parent)
        self._state = "closed"
        self.receipt = replace(draft, size_bytes=out.at, sha256=sha256)
        return self.receipt

    def abort(self) -> None:
        """Give up: stop threads, remove temporary files, a live recording's too. Nothing stands under the path."""
        if self._state not in ("closed", "aborted"):
            self._stop(keep=False)

    def _give_up(self, cause: BaseException | None = None) -> None:
        """As `abort`, but what a live recording has so far stays, as after a power cut."""
        if self._state in ("closed", "aborted"):
            return
        keep = self.live and self._temporary is not None and self._out.at > 0
        if keep and self._state == "open":
            with contextlib.suppress(Exception):  # the file has all that could be written before
                for group in self._groups.values():
                    self._pump(group, final=True)
                self._out.sync()
        self._stop(keep=keep)
        if keep:
            told = f"what was recorded stays in {self._temporary}; `kinemill episode repack` makes an episode of it"
            _LOG.warning("episode %s: %s", self.episode_id, told)
            if cause is not None:
                cause.add_note(told)

    def _stop(self, *, keep: bool) -> None:
        self._state = "aborted"
        with contextlib.ExitStack() as last_first:
            if self._temporary is not None:
                if not keep:
                    last_first.callback(self._temporary.unlink, missing_ok=True)
                last_first.callback(close_quietly, self._stream)
            last_first.callback(self._out.stop)
            last_first.callback(self._spools.close)
            for group in self._groups.values():
                last_first.callback(group.abort)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, value: object, trace: object) -> None:
        if kind is None:
            self.close()
        else:
            self._give_up(value if isinstance(value, BaseException) else None)
