"""Read what other writers put into MCAP: images and video in all the ways that robots record them.

Everything here yields either a picture for the encoder, an H.264 access unit, or None for "store
the message as it is".
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from kinemill.episode.cdr import CdrCursor
from kinemill.episode.keyframes import is_keyframe
from kinemill.episode.proto import top_fields, video_bytes
from kinemill.errors import CorruptError, LimitError, UnsupportedError

if TYPE_CHECKING:
    from av.video.frame import VideoFrame
    from numpy.typing import NDArray

__all__ = ["Payload", "PictureDecoder", "read_payload", "takes_pictures"]

_MAX_PIXELS: Final = 1 << 28
_MOST_WAITING: Final = 64
"""Packets that a decoder may be behind: H.264 and H.265 reorder at most 16 pictures."""
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_VIDEO_CODECS: Final = {"h264": "h264", "h265": "hevc", "hevc": "hevc", "vp9": "vp9", "av1": "av1", "avc": "h264"}
_RAW: Final = {
    "rgb8": ("rgb24", 3, 1),
    "bgr8": ("bgr24", 3, 1),
    "rgba8": ("rgba", 4, 1),
    "bgra8": ("bgra", 4, 1),
    "mono8": ("gray", 1, 1),
    "8UC1": ("gray", 1, 1),
    "8UC3": ("bgr24", 3, 1),
    "16UC1": ("depth", 1, 2),
    "mono16": ("depth", 1, 2),
}


@dataclass(frozen=True, slots=True)
class Payload:
    """What a message holds.

    `kind`: `video` (a packet of `codec`), `still` (a compressed picture of `codec`; `png16` is one of
    16 bits), `raw` (an array: uint8 pictures in `codec` as pixel format, or uint16 depth).
    """

    kind: Literal["video", "still", "raw"]
    codec: str
    data: bytes = b""
    image: NDArray[Any] | None = None


def takes_pictures(schema: str, encoding: str) -> bool:
    """Whether `read_payload` knows this kind of message."""
    return (schema, encoding) in _READERS


def read_payload(schema: str, encoding: str, data: memoryview) -> Payload:
    """The picture or packet in a message.

    Raises:
        CorruptError: The message does not parse.
        UnsupportedError: A pixel format or codec that is not known.
        LimitError: A picture of absurd size.
    """
    return _READERS[schema, encoding](data)


def _video(codec: str, data: bytes) -> Payload:
    known = _VIDEO_CODECS.get(codec.lower())
    if known is None:
        raise UnsupportedError(f"video format {codec!r}; known are {', '.join(_VIDEO_CODECS)}")
    return Payload("video", known, data)


def _still(codec: str, data: bytes) -> Payload:
    text = codec.lower()
    if text in _VIDEO_CODECS:  # some drivers publish a stream as CompressedImage
        return _video(text, data)
    if data[:3] == b"\xff\xd8\xff":
        return Payload("still", "mjpeg", data)
    if data[:8] == _PNG:
        return _png(data)
    if "compresseddepth" in text.replace(" ", "") and data[12:20] == _PNG:
        return _png(data[12:])  # behind image_transport's 12 bytes of configuration
    raise UnsupportedError(f"a compressed image of format {codec!r} that starts with {data[:4].hex(' ')}; jpeg or png")


def _png(data: bytes) -> Payload:
    """A PNG; one of 16 bits (its IHDR says so) is depth, which an encoder of pictures would spoil."""
    return Payload("still", "png16" if data[12:16] == b"IHDR" and data[24:25] == b"\x10" else "png", data)


def _raw(encoding: str, width: int, height: int, step: int, data: memoryview, *, big: bool = False) -> Payload:
    if encoding not in _RAW:
        raise UnsupportedError(f"an image in {encoding!r}; known are {', '.join(_RAW)}")
    pixel_format, channels, size = _RAW[encoding]
    line = width * channels * size
    if not 0 < width * height <= _MAX_PIXELS:
        raise LimitError(f"an image of {width} x {height} pixels")
    if step < line or step * height > len(data) + step - line:
        raise CorruptError(f"an image of {width} x {height} {encoding}, step {step}, with {len(data)} bytes")
    # the last line may end where its pixels do
    image = np.ascontiguousarray(np.ndarray((height, line), np.uint8, data, 0, (step, 1)))
    if size == 2:
        return Payload(
            "raw", "depth", image=image.view(">u2" if big else "<u2").astype(np.uint16).reshape(height, width)
        )
    shape = (height, width) if channels == 1 else (height, width, channels)
    return Payload("raw", pixel_format, image=image.reshape(shape))


def _proto_video(data: memoryview) -> Payload:
    packet, codec = video_bytes(data)
    return _video(codec, bytes(packet))


def _proto_still(data: memoryview) -> Payload:
    found: dict[int, bytes] = {}
    for number, value in top_fields(data):
        if isinstance(value, memoryview):
            found[number] = bytes(value)
    return _still(found.get(3, b"").decode("ascii", "replace"), found.get(2, b""))


def _proto_raw(data: memoryview) -> Payload:
    numbers = {2: 0, 3: 0, 5: 0}
    encoding, pixels = "", memoryview(b"")
    for number, value in top_fields(data):
        if isinstance(value, memoryview):
            if number == 4:
                encoding = str(value, "ascii", "replace")
            elif number == 6:
                pixels = value
        elif number in numbers:
            numbers[number] = value
    return _raw(encoding, numbers[2], numbers[3], numbers[5], pixels)


def _cdr_header(cursor: CdrCursor) -> None:
    cursor.number("i", 4, 4)
    cursor.number("I", 4, 4)
    cursor.text()


def _cdr_still(data: memoryview) -> Payload:
    cursor = CdrCursor(data)
    _cdr_header(cursor)
    codec = cursor.text()
    return _still(codec, bytes(cursor.raw()))


def _cdr_video(data: memoryview) -> Payload:
    cursor = CdrCursor(data)
    cursor.number("i", 4, 4)
    cursor.number("I", 4, 4)
    cursor.text()
    packet = bytes(cursor.raw())
    return _video(cursor.text(), packet)


def _cdr_image(data: memoryview) -> Payload:
    cursor = CdrCursor(data)
    _cdr_header(cursor)
    height, width = cursor.number("I", 4, 4), cursor.number("I", 4, 4)
    encoding = cursor.text()
    big = bool(cursor.number("B", 1, 1))
    step = cursor.number("I", 4, 4)
    return _raw(encoding, width, height, step, cursor.raw(), big=big)


def _json_video(data: memoryview) -> Payload:
    try:
        message = json.loads(bytes(data))
        packet = base64.b64decode(message["data"], validate=True)
        codec = str(message.get("format", "h264"))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, binascii.Error) as exc:
        raise CorruptError(f"a JSON video message that does not parse ({type(exc).__name__})") from exc
    return _video(codec, packet)


_READERS = {
    ("foxglove.CompressedVideo", "protobuf"): _proto_video,
    ("foxglove.CompressedVideo", "json"): _json_video,
    ("foxglove_msgs/msg/CompressedVideo", "cdr"): _cdr_video,
    ("foxglove.CompressedImage", "protobuf"): _proto_still,
    ("foxglove.RawImage", "protobuf"): _proto_raw,
    ("sensor_msgs/msg/CompressedImage", "cdr"): _cdr_still,
    ("sensor_msgs/msg/Image", "cdr"): _cdr_image,
}


class PictureDecoder:
    """Pictures out of a foreign topic's payloads, for the encoder.

    Video that reorders frames comes out later than it goes in, so each call returns what is ready.
    """

    def __init__(self) -> None:
        self._context: Any = None
        self._codec = ""
        self._pts: dict[int, int] = {}
        self._times: list[int] = []
        """Of the packets whose pictures have not come yet."""
        self._next = 0
        self._broken = False
        """Packets are missing; pictures would be predicted from wrong ones until the next key frame."""

    def feed(self, payload: Payload, t_ns: int) -> list[tuple[int, VideoFrame | NDArray[Any]]]:
        """(time, picture) of what this payload completes; depth as uint16 arrays.

        Raises:
            CorruptError: It does not decode.
        """
        from av.video.frame import VideoFrame

        if payload.kind == "raw" and payload.image is not None:
            if payload.codec == "depth":
                return [(t_ns, payload.image)]
            return [(t_ns, VideoFrame.from_ndarray(payload.image, format=payload.codec))]
        return self._decode(payload.codec, payload.data, t_ns, still=payload.kind == "still")

    def finish(self) -> list[tuple[int, VideoFrame | NDArray[Any]]]:
        """What the decoder still holds."""
        if self._context is None:
            return []
        import av

        try:
            return self._frames(self._context.decode(None))
        except (av.FFmpegError, CorruptError):  # nothing whole is in it
            return []

    def _decode(self, codec: str, data: bytes, t_ns: int, *, still: bool) -> list[tuple[int, Any]]:
        import av

        if still:
            codec = "png" if codec == "png16" else codec
        elif self._broken and is_keyframe(codec, data) is False:
            raise CorruptError(f"{codec} picture at {t_ns} ns depends on one that is missing")
        if self._context is None or self._codec != codec:
            self._context = av.VideoCodecContext.create(codec, "r")
            self._context.thread_count = 1
            self._context.options = {"err_detect": "explode", "max_pixels": str(_MAX_PIXELS)}
            self._codec = codec
        packet = av.Packet(data)
        packet.pts = packet.dts = self._next
        self._pts[self._next] = t_ns
        self._times.append(t_ns)
        self._next += 1
        if len(self._times) > _MOST_WAITING:  # packets without a picture, such as parameter sets
            self._spend(min(self._times))
            self._pts.pop(next(iter(self._pts)), None)
        try:
            found = self._frames(self._context.decode(packet))
        except (av.FFmpegError, CorruptError) as exc:
            # a fresh decoder refuses what depends on pictures that it has not seen
            self._context, self._broken = None, not still
            self._pts.clear()
            self._times.clear()
            raise CorruptError(f"{codec} picture at {t_ns} ns does not decode ({exc})") from exc
        self._broken = False
        if still and len(found) != 1:
            raise CorruptError(f"{codec} picture at {t_ns} ns gave {len(found)} pictures")
        return found

    def _spend(self, t_ns: int) -> None:
        if t_ns in self._times:
            self._times.remove(t_ns)

    def _frames(self, frames: list[Any]) -> list[tuple[int, Any]]:
        out = []
        for frame in frames:
            if frame.is_corrupt:
                raise CorruptError("a picture that the decoder flags as damaged")
            t_ns = self._pts.pop(frame.pts, None)
            if t_ns is None:
                raise CorruptError("a picture that belongs to no packet")
            if self._context.has_b_frames:
                # pictures leave in the order in which they were taken: the next one has the earliest time that is left,
                # whether its recorder stamped packets as they were coded, or with the time of display
                t_ns = min(self._times, default=t_ns)
            self._spend(t_ns)
            if frame.format.name in ("gray16be", "gray16le"):
                out.append((t_ns, np.ascontiguousarray(frame.to_ndarray(format="gray16le"))))
            else:
                out.append((t_ns, frame))
        return out
