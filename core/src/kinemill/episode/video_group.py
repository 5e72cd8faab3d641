"""Cameras that are read together: frames or ready packets become GOPs, GOPs become chunks.

A `VideoGroup` hands out `BuiltChunk`s in file order and holds no more than its reorder window plus one chunk.
"""

from __future__ import annotations

import heapq
import itertools
import operator
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kinemill.episode import proto, wire
from kinemill.episode.chunks import BuiltChunk, build_chunk
from kinemill.episode.encode import CameraEncoder, Ticks
from kinemill.episode.frame_order import FrameOrder
from kinemill.episode.topics import Profile, TopicSpec
from kinemill.errors import LimitError, UnsupportedError, UsageError

__all__ = ["VideoGroup"]

_JOIN_NS = (40_000_000, 100_000_000)
"""Passed-through IDRs this close are one tick: half a GOP, within these bounds (guess: one frame at 25 to 10 Hz)."""


@dataclass(slots=True)
class _Gop:
    """A GOP of all cameras while it grows: packets as (time, camera, data, idr)."""

    start_ns: int
    packets: list[tuple[int, int, bytes, bool]] = field(default_factory=list)
    cameras: set[int] = field(default_factory=set)
    size: int = 0
    several: bool = False
    """It holds more than one IDR of a camera, so that decode order is not always that of time."""

    def add(self, t_ns: int, camera: int, data: bytes, idr: bool) -> None:
        if idr and camera in self.cameras:
            self.several = True
        self.packets.append((t_ns, camera, data, idr))
        self.cameras.add(camera)
        self.size += len(data)

    def in_order(self) -> list[tuple[int, int, bytes, bool]]:
        """Packets by time, then by camera, in decode order of each."""
        return _in_order(self.packets) if self.several else sorted(self.packets, key=_TIME_AND_CAMERA)


_TIME_AND_CAMERA = operator.itemgetter(0, 1)


class _VideoChunks:
    """Packs GOPs into chunks and frames into messages; shared by both ways that packets come."""

    def __init__(self, specs: Sequence[TopicSpec], channels: Sequence[int], profile: Profile) -> None:
        self._channels = channels
        self._profile = profile
        self._frame_id = [proto.text_field(2, s.frame_id.encode()) if s.frame_id else b"" for s in specs]
        self._suffix = proto.video_suffix("h264")
        self._sequence = [1] * len(specs)
        self._waiting: list[_Gop] = []
        self._size = 0

    def add(self, gop: _Gop) -> Iterator[BuiltChunk]:
        """Take a finished GOP; yield a chunk when one is full."""
        limit = self._profile.max_chunk_bytes
        if gop.size > limit:
            raise LimitError(
                f"a GOP of {gop.size >> 20} MiB from {gop.start_ns} ns; chunks hold at most {limit >> 20} MiB: "
                "shorten the GOP, or give large cameras a group of their own"
            )
        if self._waiting and self._size + gop.size > limit:
            yield self.cut()
        self._waiting.append(gop)
        self._size += gop.size
        if self._size >= self._profile.chunk_bytes:
            yield self.cut()

    def rest(self) -> Iterator[BuiltChunk]:
        """The last chunk, if any GOP waits."""
        if self._waiting:
            yield self.cut()

    def cut(self) -> BuiltChunk:
        gops = tuple((min(p[0] for p in gop.packets), len(gop.packets)) for gop in self._waiting)
        packets = [p for gop in self._waiting for p in gop.in_order()]
        self._waiting.clear()
        self._size = 0
        return self.build(packets, gops)

    def build(self, packets: Sequence[tuple[int, int, bytes, bool]], gops: tuple[tuple[int, int], ...]) -> BuiltChunk:
        """Messages of one chunk, in the order given."""
        pieces: list[bytes] = []
        entries: list[list[int]] = [[] for _ in self._channels]
        offset = 0
        suffix, sequence, frame_id, channels = self._suffix, self._sequence, self._frame_id, self._channels
        pack, prefix_of = wire.MESSAGE_HEAD.pack, proto.video_prefix
        for t_ns, camera, data, _ in packets:
            prefix = prefix_of(t_ns, frame_id[camera], len(data))
            size = wire.MESSAGE_FIXED + len(prefix) + len(data) + len(suffix)
            number = sequence[camera]
            sequence[camera] = number + 1
            head = pack(wire.Op.MESSAGE, size, channels[camera], number & 0xFFFFFFFF, t_ns, t_ns)
            pieces += (head, prefix, data, suffix)
            entries[camera] += (t_ns, offset)
            offset += 9 + size
        times = [p[0] for p in packets]
        return build_chunk(
            pieces, entries, self._channels, t_first_ns=min(times), t_last_ns=max(times), compress=None, gops=gops
        )


def _in_order(packets: Sequence[tuple[int, int, bytes, bool]]) -> list[tuple[int, int, bytes, bool]]:
    """Packets by time, then by camera, but never one before an earlier one of its own camera: that is decode order."""
    newest: dict[int, int] = {}
    keyed = []
    for packet in packets:
        t_ns, camera = packet[0], packet[1]
        t_ns = newest[camera] = max(t_ns, newest.get(camera, -1))
        keyed.append((t_ns, camera, packet))
    return [packet for _, _, packet in sorted(keyed, key=lambda item: item[:2])]


class _Packet(NamedTuple):
    """A packet in the reorder window."""

    place_ns: int
    """Its time; of a late one that of the packet that it is stored beside, as decode order wants."""
    camera: int
    arrival: int
    t_ns: int
    data: bytes
    idr: bool


class VideoGroup:
    """Cameras that are read together.

    Frames are encoded here, or packets are passed through; one group does one of both, because
    the IDRs of all its cameras have to fall on the same ticks.
    """

    def __init__(
        self, name: str, specs: Sequence[TopicSpec], channels: Sequence[int], profile: Profile, *, live_ns: int | None
    ) -> None:
        self.name = name
        self.specs = specs
        self.channels = channels
        self.counts: Counter[str] = Counter()
        self.late = 0
        self._profile = profile
        self._live_ns = live_ns
        self._chunks = _VideoChunks(specs, channels, profile)
        self._newest = -1
        self._encoders: list[CameraEncoder | None] = [None] * len(specs)
        self._ticks: Ticks | None = None
        self._gops: dict[int, _Gop] = {}
        self._got: dict[int, Counter[int]] = {}
        self._passed = False
        # pass-through
        self._heap: list[_Packet] = []
        self._arrival = itertools.count()
        self._open: list[_Gop] = []
        self._at: list[int] = [-1] * len(specs)  # serial number of each camera's current GOP
        self._serial = 0  # of self._open[0]
        self._last: list[int] = [-1] * len(specs)
        self._last_idr: list[int] = [-1] * len(specs)
        self._orders = [FrameOrder() for _ in specs]
        self._join_ns = _JOIN_NS[0]
        self._heap_bytes = 0
        self._late: list[list[tuple[int, bytes]]] = [[] for _ in specs]
        """Of each camera: late IDRs that wait for its next one."""
        self._joining: list[list[tuple[int, bytes]]] = [[] for _ in specs]
        """The same, once they have left the window, until that next one leaves it."""
        self._live: list[_Packet] = []
        self._live_bytes = 0

    # -- frames that are encoded here

    def frame(self, camera: int, t_ns: int, image: Any) -> None:
        """Queue an image for its encoder."""
        if self._passed:
            raise UsageError(
                f"group {self.name}: .frame after .packet; cameras of one group are all encoded here or all passed "
                "through: give the others a `group` of their own"
            )
        encoder = self._encoders[camera]
        if encoder is None:
            encoder = self._encoders[camera] = self._open_encoder(camera)
        self._newest = max(self._newest, t_ns)
        encoder.submit(t_ns, image)

    def _open_encoder(self, camera: int) -> CameraEncoder:
        if self._ticks is None:
            rates = [s.rate_hz for s in self.specs if s.rate_hz]
            if not rates:
                raise UsageError(
                    f"topic {self.specs[camera].topic}: rate_hz is needed to place the IDR ticks; give the camera's "
                    "nominal rate"
                )
            self._ticks = Ticks(max(rates), self._profile.gop_frames)
        return CameraEncoder(self.specs[camera], self._profile, self._ticks)

    def _collect(self, camera: int, encoder: CameraEncoder, *, last: bool = False) -> None:
        for frame in encoder.finish() if last else encoder.take():
            gop = self._gops.get(frame.gop)
            if gop is None:
                gop = self._gops[frame.gop] = _Gop(frame.t_ns)
                self._got[frame.gop] = Counter()
            gop.add(frame.t_ns, camera, frame.data, frame.idr)
            self._got[frame.gop][camera] += 1
            if gop.size > self._profile.max_chunk_bytes:
                raise LimitError(
                    f"group {self.name}: a GOP of more than {self._profile.max_chunk_bytes >> 20} MiB from "
                    f"{gop.start_ns} ns; shorten the GOP, or give large cameras a group of their own; "
                    "or do the time stamps stand still?"
                )

    def _encoded(self, *, final: bool) -> Iterator[_Gop]:
        ticks = self._ticks
        if ticks is None:
            return
        encoders = [(i, e) for i, e in enumerate(self._encoders) if e is not None]
        for camera, encoder in encoders:
            self._collect(camera, encoder, last=final)
        horizon = self._newest - self._profile.reorder_ns
        for number in sorted(self._gops):
            if not final:
                if ticks.start_ns(number + 1) > horizon:
                    return
                for _, encoder in encoders:
                    encoder.drain_held(ticks.start_ns(number + 1) - 1)
                if any(self._got[number][camera] < encoder.given(number) for camera, encoder in encoders):
                    return
            for _, encoder in encoders:
                encoder.forget(number)
            del self._got[number]
            yield self._gops.pop(number)

    # -- packets that are passed through

    def packet(self, camera: int, t_ns: int, data: bytes, *, idr: bool) -> None:
        """Queue a checked access unit.

        A late IDR that the camera's next packet does not depend on, as our writer stores a late frame, goes into the
        GOP of that next packet.

        Raises:
            UnsupportedError: The camera's first packet is no IDR, or its packets go back in time.
        """
        if self._ticks is not None:
            raise UsageError(f"group {self.name}: .packet after .frame; give passed-through cameras their own `group`")
        last, late = self._last[camera], self._late[camera]
        if not idr and (t_ns < last or late):
            raise UnsupportedError(
                f"topic {self.specs[camera].topic}: a packet of {t_ns} ns after one of "
                f"{late[-1][0] if late else last} ns, behind one of {last} ns; packets come in decode order, and "
                "without B-frames that is the order of time: write frames, so that they are encoded here, or order "
                "the source"
            )
        if last < 0 or not self._passed:
            if not idr:
                raise UnsupportedError(
                    f"topic {self.specs[camera].topic}: the first packet ({t_ns} ns) is no IDR; start at one"
                )
            self._passed = True
        # kept, since nobody can record them again; `repack` leaves out what cannot be decoded
        lost = self._orders[camera].missing(data)
        if lost and not idr:
            self.counts["frames_lost_before"] += lost
        self._hold(camera, len(data))
        if t_ns <= last:
            if t_ns < last:
                self.late += 1
                late.append((t_ns, data))
                return
            self.counts["repeated_stamps"] += 1
        self._last[camera] = t_ns
        self._newest = max(self._newest, t_ns)
        if late:
            for late_ns, late_data in late:
                self._push(t_ns, camera, late_ns, late_data, True)
            late.clear()
        self._push(t_ns, camera, t_ns, data, idr)

    def _hold(self, camera: int, size: int) -> None:
        self._heap_bytes += size
        if self._heap_bytes > 4 * self._profile.max_chunk_bytes:
            raise LimitError(
                f"topic {self.specs[camera].topic}: {self._heap_bytes >> 20} MiB of packets within "
                f"{self._profile.reorder_ns / 1e9:g} s up to {self._newest} ns; do the time stamps advance?"
            )

    def _push(self, place_ns: int, camera: int, t_ns: int, data: bytes, idr: bool) -> None:
        heapq.heappush(self._heap, _Packet(place_ns, camera, next(self._arrival), t_ns, data, idr))

    def _released(self, *, final: bool, waiting: bool = True) -> list[_Packet]:
        """Packets that lie behind the reorder window, in the order of time; without `waiting`, all that came."""
        if final:  # late ones that nothing follows
            for camera, late in enumerate(self._late):
                for t_ns, data in late:
                    self._push(self._newest, camera, t_ns, data, True)
                late.clear()
        horizon = self._newest - self._profile.reorder_ns
        heap, out = self._heap, []
        while heap and (final or not waiting or heap[0].place_ns <= horizon):
            out.append(heapq.heappop(heap))
            self._heap_bytes -= len(out[-1].data)
        return out

    def _place(self, packet: _Packet) -> None:
        """Put a packet into its GOP; an IDR joins the newest tick or opens one."""
        t_ns, camera, data, idr = packet.t_ns, packet.camera, packet.data, packet.idr
        if t_ns < packet.place_ns:
            self._joining[camera].append((t_ns, data))
            return
        if idr:
            if self._last_idr[camera] >= 0:
                self._join_ns = min(max((t_ns - self._last_idr[camera]) // 2, _JOIN_NS[0]), _JOIN_NS[1])
            self._last_idr[camera] = t_ns
            newest = self._open[-1] if self._open else None
            if newest is None or camera in newest.cameras or t_ns - newest.start_ns > self._join_ns:
                newest = _Gop(t_ns)
                self._open.append(newest)
            self._at[camera] = self._serial + len(self._open) - 1
        position = max(0, self._at[camera] - self._serial)
        if position == 0 and self._at[camera] < self._serial:
            self.late += 1
        if self._joining[camera]:
            for late_ns, late_data in self._joining[camera]:
                self._open[position].add(late_ns, camera, late_data, True)
            self._joining[camera].clear()
        self._open[position].add(t_ns, camera, data, idr)
        # a camera without an IDR on a later tick ties that tick's GOPs together
        while position + 1 < len(self._open) and t_ns - self._open[position + 1].start_ns > self._join_ns:
            follower = self._open.pop(position + 1)
            here = self._open[position]
            here.packets += follower.packets
            here.several = True
            here.cameras |= follower.cameras
            here.size += follower.size
            self.counts["unaligned_idr"] += 1
            merged = self._serial + position
            self._at = [at - 1 if at > merged else at for at in self._at]
            if here.size > self._profile.max_chunk_bytes:
                raise UnsupportedError(
                    f"group {self.name}: the cameras' IDRs do not fall on common ticks (from {here.start_ns} ns on); "
                    "give each camera a `group` of its own, or re-encode"
                )

    def _passed_through(self, *, final: bool) -> Iterator[_Gop]:
        for packet in self._released(final=final):
            self._place(packet)
            if self._open and self._open[-1].size > self._profile.max_chunk_bytes:
                raise LimitError(
                    f"group {self.name}: a GOP of more than {self._profile.max_chunk_bytes >> 20} MiB from "
                    f"{self._open[-1].start_ns} ns; re-encode with a shorter GOP"
                )
            while len(self._open) > 1 and packet.place_ns - self._open[1].start_ns > 2 * _JOIN_NS[1]:
                self._serial += 1
                yield self._open.pop(0)
        if final:
            yield from self._open
            self._open.clear()
            rest = [(t, camera, data) for camera, late in enumerate(self._joining) for t, data in late]
            if rest:
                alone = _Gop(min(t for t, _, _ in rest))
                for t_ns, camera, data in rest:
                    alone.add(t_ns, camera, data, True)
                self._joining = [[] for _ in self.specs]
                yield alone

    # -- chunks

    def size_of(self, topic: str) -> tuple[int, int] | None:
        """(width, height) of what was encoded; None where nothing was."""
        for spec, encoder in zip(self.specs, self._encoders, strict=True):
            if spec.topic == topic and encoder is not None:
                return encoder.size
        return None

    def chunks(self, *, final: bool = False) -> Iterator[BuiltChunk]:
        """What can be written now; with `final`, all that is left."""
        if self._live_ns is not None:
            yield from self._live_chunks(final=final)
            return
        for gop in self._encoded(final=final):
            yield from self._chunks.add(gop)
        for gop in self._passed_through(final=final):
            yield from self._chunks.add(gop)
        if final:
            yield from self._chunks.rest()
            self.late += sum(e.late for e in self._encoders if e is not None)

    def flush(self) -> Iterator[BuiltChunk]:
        """Live: all that the encoders have given, without waiting for what may still come before it."""
        yield from self._live_chunks(final=False, waiting=False)
        if self._live:
            yield self._cut_live()

    def _live_chunks(self, *, final: bool, waiting: bool = True) -> Iterator[BuiltChunk]:
        """Cut on time alone, wherever in a GOP: what a power cut may take is at most this much."""
        for camera, encoder in enumerate(self._encoders):
            if encoder is None:
                continue
            # as where a camera has stopped
            encoder.drain_held(self._newest - (self._profile.reorder_ns if waiting else 0))
            for frame in encoder.finish() if final else encoder.take():
                # a late one follows what was encoded before it, which later frames do not depend on any more
                self._last[camera] = max(self._last[camera], frame.t_ns)
                self._push(self._last[camera], camera, frame.t_ns, frame.data, frame.idr)
                self._hold(camera, len(frame.data))
                encoder.took(frame.gop)
        for packet in self._released(final=final, waiting=waiting):
            if self._live and (
                packet.place_ns - self._live[0].place_ns >= (self._live_ns or 0)
                or self._live_bytes + len(packet.data) > self._profile.max_chunk_bytes // 4
            ):
                yield self._cut_live()
            self._live.append(packet)
            self._live_bytes += len(packet.data)
        if final:
            self.late += sum(e.late for e in self._encoders if e is not None)
            if self._live:
                yield self._cut_live()

    def _cut_live(self) -> BuiltChunk:
        packets = _in_order([(p.t_ns, p.camera, p.data, p.idr) for p in self._live])
        self._live, self._live_bytes = [], 0
        starts = [i for i, p in enumerate(packets) if p[3]]
        gops = ((packets[starts[0]][0], len(packets) - starts[0]),) if starts else ()
        return self._chunks.build(packets, gops)

    def abort(self) -> None:
        """Stop all threads."""
        for encoder in self._encoders:
            if encoder is not None:
                encoder.abort()
