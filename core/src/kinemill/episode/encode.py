"""H.264 of one camera, in a thread of its own.

FFmpeg releases the interpreter while it converts and encodes, so cameras are encoded in parallel
by threads. A camera's queue is short: a producer that is faster than the encoder waits, and memory
stays bounded.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinemill.episode.h264 import check_packet
from kinemill.episode.topics import NS, Profile, TopicSpec
from kinemill.errors import KinemillError, UnsupportedError, UsageError

if TYPE_CHECKING:
    import av
    from av.video.frame import VideoFrame

__all__ = ["CameraEncoder", "EncodedFrame", "encoder_options", "to_video_frame"]

_QUEUE = 4
_MOST_LATE = 8
"""Late frames that wait for their camera's next GOP, raw; more are encoded where they are."""


@dataclass(frozen=True, slots=True)
class EncodedFrame:
    """One access unit, and the GOP it belongs to (by number, counted by time; see `Ticks`)."""

    t_ns: int
    gop: int
    idr: bool
    data: bytes


@dataclass(slots=True)
class Ticks:
    """When all cameras start a new GOP: by time, so that mixed rates and dropped frames fit.

    Tick k lies half a frame before `origin + k * gop`, so that jitter of less than half a frame
    does not move a frame over it.
    """

    rate_hz: float
    gop_frames: int
    origin_ns: int | None = None

    def gop_of(self, t_ns: int) -> int:
        """The number of the GOP that a frame of this time belongs to."""
        if self.origin_ns is None:
            self.origin_ns = t_ns
        frames = (t_ns - self.origin_ns) * self.rate_hz / NS + 0.5
        return max(0, int(frames // self.gop_frames))

    def start_ns(self, gop: int) -> int:
        """The time of a tick."""
        return (self.origin_ns or 0) + int((gop * self.gop_frames - 0.5) * NS / self.rate_hz)


def encoder_options(profile: Profile, overrides: Mapping[str, str]) -> dict[str, str]:
    """Options of libx264 that make a stream which episodes may hold.

    IDRs are placed by the caller (`forced-idr`), so the encoder's own key frame interval is out of
    reach; everything that would reorder, split or reference across them is off.
    """
    given = dict(overrides)
    params = {
        "keyint": "infinite",
        "scenecut": "0",
        "bframes": "0",
        "open-gop": "0",
        "repeat-headers": "1",
        "annexb": "1",
        "threads": "1",
        "sync-lookahead": "0",
        "rc-lookahead": str(profile.lookahead),
        **dict(profile.x264),
        "colorprim": "smpte170m",
        "transfer": "smpte170m",
        "colormatrix": "smpte170m",
    }
    options = {"preset": given.pop("preset", profile.preset), "crf": given.pop("crf", f"{profile.crf:g}")}
    tune = given.pop("tune", profile.tune)
    if tune:
        options["tune"] = tune
    fixed = {"keyint", "scenecut", "bframes", "open-gop", "repeat-headers", "annexb", "threads"}
    if clash := fixed & set(given):
        raise UsageError(f"encoder option {', '.join(sorted(clash))} is fixed by the format")
    params.update(given)
    options["x264-params"] = ":".join(f"{k}={v}" for k, v in params.items())
    options["forced-idr"] = "1"
    return options


def to_video_frame(image: Any, spec: TopicSpec) -> VideoFrame:
    """An image as a frame for the encoder.

    Args:
        image: uint8 array as `spec.pixel_format` says, or an `av.VideoFrame`.
        spec: Its topic.

    Raises:
        UsageError: Wrong shape or type.
        UnsupportedError: A size that 4:2:0 cannot have.
    """
    from av.video.frame import VideoFrame

    if isinstance(image, VideoFrame):
        width, height = image.width, image.height
        frame = image
    else:
        shape, kind = getattr(image, "shape", None), str(getattr(image, "dtype", type(image).__name__))
        wanted = {"rgb24": 3, "gray": 2, "yuv420p": 2}.get(spec.pixel_format)
        if wanted is None:
            raise UsageError(f"topic {spec.topic}: pixel_format {spec.pixel_format!r}: rgb24, gray or yuv420p")
        if shape is None or len(shape) != wanted or kind != "uint8" or (wanted == 3 and shape[2] != 3):
            raise UsageError(
                f"topic {spec.topic}: an image of shape {shape}, {kind}; expected {spec.pixel_format} uint8"
            )
        width, height = shape[1], shape[0] if spec.pixel_format != "yuv420p" else shape[0] * 2 // 3
        if spec.pixel_format == "yuv420p" and (shape[0] % 3 or width % 2 or height % 2):
            raise UsageError(
                f"topic {spec.topic}: yuv420p of shape {shape}; expected (height * 3 / 2, width), both even"
            )
        if width % 2 == 0 and height % 2 == 0 and width and height:
            frame = VideoFrame.from_ndarray(image, format=spec.pixel_format)
    if width % 2 or height % 2 or not width or not height:
        raise UnsupportedError(
            f"topic {spec.topic}: {width} x {height} pixels; 4:2:0 video needs even sides: crop or pad the source"
        )
    if (spec.width or width, spec.height or height) != (width, height):
        raise UnsupportedError(
            f"topic {spec.topic}: a frame of {width} x {height} in a stream of {spec.width} x {spec.height}; "
            "a camera that changes its size is two topics"
        )
    return frame


class CameraEncoder:
    """Frames of one camera in, access units out, in a thread.

    Not thread-safe on the caller's side: one producer calls `submit`, `take` and `finish`.
    """

    def __init__(self, spec: TopicSpec, profile: Profile, ticks: Ticks) -> None:
        self._spec = spec
        self._options = encoder_options(profile, spec.encoder)
        self._ticks = ticks
        self._profile = profile
        self._queue: queue.Queue[tuple[int, int, bool, Any] | None] = queue.Queue(_QUEUE)
        self._done: deque[EncodedFrame] = deque()
        self._held: list[tuple[int, int, Any]] = []
        self._count = itertools.count()
        self._newest = -1
        self._encoded_to = -1
        self._gop = -1
        self._most_held = 8 + int(2 * (spec.rate_hz or ticks.rate_hz) * profile.frame_reorder_ns / NS)
        self._stash: list[tuple[int, Any]] = []
        self._anew = False
        """The next frame cannot be predicted from the one before, which lies in another GOP."""
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._given: dict[int, int] = {}
        self.closed_gop = -1
        """Highest GOP that the group has written out; frames for it come too late."""
        self.late = 0
        self.size: tuple[int, int] | None = None

    def submit(self, t_ns: int, image: Any) -> None:
        """Take a frame; waits while the encoder is behind.

        Raises:
            KinemillError: The frame does not fit, or an earlier one failed to encode.
        """
        self._raise()
        frame = to_video_frame(image, self._spec)
        size = (frame.width, frame.height)
        if self.size is not None and size != self.size:
            raise UnsupportedError(
                f"topic {self._spec.topic}: a frame of {size[0]} x {size[1]} after {self.size[0]} x {self.size[1]}; "
                "a camera that changes its size is two topics"
            )
        self.size = size
        self._newest = max(self._newest, t_ns)
        heapq.heappush(self._held, (t_ns, next(self._count), frame))
        self._release(self._newest - self._profile.frame_reorder_ns)

    def _release(self, until_ns: int | None) -> None:
        # a clock that stands still would hold frames for ever, so their number is bounded too
        while self._held and (until_ns is None or self._held[0][0] <= until_ns or len(self._held) > self._most_held):
            t_ns, _, frame = heapq.heappop(self._held)
            gop = self._ticks.gop_of(t_ns)
            if t_ns < self._encoded_to or gop <= self.closed_gop:
                # too late for its own GOP: it waits for the next one, as an IDR of its own
                self.late += 1
                self._stash.append((t_ns, frame))
                if len(self._stash) >= _MOST_LATE:  # as where a camera lags behind the others all the time
                    self._put_late(max(self._gop, self.closed_gop) + 1)
                    self._anew = True
                continue
            if gop > self._gop:
                self._put_late(gop)
                self._put(t_ns, gop, True, frame)
                self._gop = gop
            else:
                self._put(t_ns, gop, self._anew, frame)
            self._anew = False
            self._encoded_to = t_ns

    def _put_late(self, gop: int) -> None:
        for t_ns, frame in sorted(self._stash, key=lambda item: item[0]):
            self._put(t_ns, gop, True, frame)
        self._stash.clear()

    def _put(self, t_ns: int, gop: int, idr: bool, frame: Any) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"encode {self._spec.topic}", daemon=True)
            self._thread.start()
        self._given[gop] = self._given.get(gop, 0) + 1
        item = (t_ns, gop, idr, frame)
        while True:
            try:
                self._queue.put(item, timeout=1.0)
            except queue.Full:
                self._raise()
                continue
            return

    def given(self, gop: int) -> int:
        """Frames of a GOP that went to the encoder so far."""
        return self._given.get(gop, 0)

    def forget(self, gop: int) -> None:
        """The GOP is written; nothing more will be asked of it."""
        self._given.pop(gop, None)
        self.closed_gop = max(self.closed_gop, gop)

    def took(self, gop: int) -> None:
        """One frame of a GOP is written, by a caller that does not wait for whole ones."""
        left = self._given.pop(gop, 1) - 1
        if left > 0:
            self._given[gop] = left

    def take(self) -> list[EncodedFrame]:
        """What was encoded since the last call."""
        self._raise()
        out = []
        while self._done:
            out.append(self._done.popleft())
        return out

    def drain_held(self, until_ns: int | None = None) -> None:
        """Give up waiting for earlier frames: submit what is held, up to a time or all."""
        self._release(until_ns)
        if until_ns is None and self._stash:
            self._put_late(max(self._gop, self.closed_gop) + 1)
            self._anew = True

    def finish(self) -> list[EncodedFrame]:
        """Encode all that is left; the encoder cannot be used after that."""
        self.drain_held()
        if self._thread is not None:
            while self._thread.is_alive():
                try:
                    self._queue.put(None, timeout=1.0)
                    break
                except queue.Full:
                    continue
            self._thread.join()
        return self.take()

    def abort(self) -> None:
        """Stop the thread and drop what it has."""
        self._held.clear()
        if self._thread is None:
            return
        while self._thread.is_alive():
            try:
                while True:
                    self._queue.get_nowait()
            except queue.Empty:
                pass
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                continue
            self._thread.join(timeout=1.0)

    def _raise(self) -> None:
        if self._error is not None:
            if isinstance(self._error, KinemillError):
                raise self._error
            raise UnsupportedError(f"topic {self._spec.topic}: encoding failed: {self._error}") from self._error

    # -- in the thread

    def _run(self) -> None:
        try:
            self._encode_all()
        except BaseException as exc:  # noqa: BLE001  # a thread's edge: it is raised again in the caller's thread
            self._error = exc
            while self._queue.get() is not None:  # let the producer come to the error instead of a full queue
                pass

    def _open(self, frame: VideoFrame) -> av.VideoCodecContext:
        import av

        context = av.VideoCodecContext.create("libx264", "w")
        context.width, context.height = frame.width, frame.height
        context.pix_fmt = "yuv420p"
        rate = self._spec.rate_hz or 30.0
        from fractions import Fraction

        context.framerate = Fraction(rate).limit_denominator(1001)
        context.time_base = 1 / context.framerate
        context.thread_count = 1
        context.options = self._options
        return context

    def _encode_all(self) -> None:
        from av.video.frame import PictureType, VideoFrame
        from av.video.reformatter import ColorRange, Colorspace, VideoReformatter

        bt601, limited = Colorspace.ITU601.value, ColorRange.MPEG.value
        convert = VideoReformatter()
        context: av.VideoCodecContext | None = None
        sent: deque[tuple[int, int, bool]] = deque()
        for pts in itertools.count():
            item = self._queue.get()
            if item is None:
                break
            t_ns, gop, idr, image = item
            frame = convert.reformat(image, format="yuv420p", dst_colorspace=bt601, dst_color_range=limited)
            if frame is image:  # perhaps the caller's own: never write to its fields
                frame = VideoFrame.from_ndarray(image.to_ndarray(), format="yuv420p")
            frame.pts = pts
            frame.pict_type = PictureType.I if idr else PictureType.NONE
            if context is None:
                context = self._open(frame)
            frame.time_base = context.time_base
            sent.append((t_ns, gop, idr))
            self._collect(context.encode(frame), sent)
        if context is not None:
            self._collect(context.encode(None), sent)
        if sent:
            raise UnsupportedError(f"topic {self._spec.topic}: the encoder kept {len(sent)} frames back")

    def _collect(self, packets: list[Any], sent: deque[tuple[int, int, bool]]) -> None:
        for packet in packets:
            t_ns, gop, idr = sent.popleft()
            data = bytes(packet)
            where = f"topic {self._spec.topic} at {t_ns} ns, encoded here"
            # the topic's own options may ask for anything, fields and B-frames too
            if check_packet(data, where=where).idr is not idr:
                raise UnsupportedError(f"{where}: the encoder placed its own key frames; check the topic's `encoder`")
            self._done.append(EncodedFrame(t_ns, gop, idr, data))
