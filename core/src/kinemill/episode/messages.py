"""The messages that are neither camera frames nor rows: depth, audio, lidar, text and events.

All are Foxglove's protobuf messages or a ROS 2 string, so that viewers show them as they are.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.episode.cdr import decode_string, encode_string
from kinemill.episode.proto import text_field, timestamp, top_fields, varint
from kinemill.episode.topics import TopicSpec
from kinemill.errors import CorruptError, UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "audio_message",
    "depth_message",
    "event_message",
    "image_encoding",
    "points_message",
    "read_image",
    "text_message",
]

_FLOAT32 = 7  # foxglove.PackedElementField.NumericType
_INFO = 2  # foxglove.Log.Level
_IMAGES = {"16UC1": ("<u2", 1), "32FC1": ("<f4", 1), "mono8": ("u1", 1), "rgb8": ("u1", 3)}


def _fixed32(number: int, value: int) -> bytes:
    return varint(number << 3 | 5) + struct.pack("<I", value)


def _field(number: int, value: int) -> bytes:
    return varint(number << 3) + varint(value) if value else b""


def image_encoding(spec: TopicSpec, image: Any) -> str:
    """What a lossless image is stored as: 16UC1, 32FC1, mono8 or rgb8.

    Raises:
        UsageError: Another shape or type.
    """
    array = np.asarray(image)
    shape = array.shape[2:]
    for name, (kind, channels) in _IMAGES.items():
        if array.ndim in (2, 3) and array.dtype == np.dtype(kind) and shape == (() if channels == 1 else (3,)):
            return name
    raise UsageError(
        f"topic {spec.topic}: an image of {array.dtype} {array.shape}; uint16, float32 or uint8 [H, W], or rgb8"
    )


def depth_message(spec: TopicSpec, t_ns: int, image: Any) -> tuple[bytes, tuple[int, int]]:
    """A lossless image as `foxglove.RawImage`, and its (width, height).

    Args:
        spec: Its topic.
        t_ns: Stamp.
        image: uint16, float32 or uint8 [H, W], or uint8 [H, W, 3].
    """
    array = np.ascontiguousarray(image)
    name = image_encoding(spec, array)
    kind, channels = _IMAGES[name]
    height, width = array.shape[:2]
    step = width * channels * array.dtype.itemsize
    body = timestamp(t_ns) + _fixed32(2, width) + _fixed32(3, height) + text_field(4, name.encode())
    body += _fixed32(5, step) + text_field(6, array.astype(kind, copy=False).tobytes())
    if spec.frame_id:
        body += text_field(7, spec.frame_id.encode())
    return body, (width, height)


def read_image(data: bytes | memoryview) -> NDArray[Any]:
    """The array of a `foxglove.RawImage`.

    Raises:
        CorruptError: Its size is not what width, height and step say, or an encoding we do not write.
    """
    width = height = step = 0
    encoding = ""
    pixels: memoryview | None = None
    for number, value in top_fields(data):
        if isinstance(value, memoryview):
            if number == 4:
                encoding = str(value, "ascii", "replace")
            elif number == 6:
                pixels = value
        elif number == 2:
            width = value
        elif number == 3:
            height = value
        elif number == 5:
            step = value
    if encoding not in _IMAGES or pixels is None:
        raise CorruptError(f"a RawImage with encoding {encoding!r}; known are {', '.join(_IMAGES)}")
    kind, channels = _IMAGES[encoding]
    size = np.dtype(kind).itemsize * channels * width
    if step != size or len(pixels) != step * height or not size:
        raise CorruptError(f"a RawImage of {width} x {height} {encoding} with {len(pixels)} bytes, step {step}")
    array = np.frombuffer(pixels, kind)
    return array.reshape((height, width, 3) if channels == 3 else (height, width))


def audio_message(spec: TopicSpec, t_ns: int, samples: ArrayLike, sample_rate: int) -> bytes:
    """A block of PCM as `foxglove.RawAudio`: int16 [n] or [n, channels]."""
    pcm = np.asarray(samples)
    if pcm.dtype != np.int16 or pcm.ndim not in (1, 2):
        raise UsageError(f"topic {spec.topic}: audio is int16 [n] or [n, channels], got {pcm.dtype} {pcm.shape}")
    if not 0 < sample_rate < 1 << 32:
        raise UsageError(f"topic {spec.topic}: a sample rate of {sample_rate}; samples a second, such as 16000")
    body = timestamp(t_ns) + text_field(2, pcm.astype("<i2").tobytes()) + text_field(3, b"pcm-s16")
    return body + _fixed32(4, sample_rate) + _fixed32(5, 1 if pcm.ndim == 1 else pcm.shape[1])


def points_message(spec: TopicSpec, t_ns: int, points: ArrayLike) -> bytes:
    """Points as `foxglove.PointCloud`: float32 [n, 3] or [n, 4]."""
    cloud = np.asarray(points, "<f4")
    if cloud.ndim != 2 or cloud.shape[1] not in (3, 4):
        raise UsageError(f"topic {spec.topic}: points are [n, 3] or [n, 4], got {cloud.shape}")
    body = timestamp(t_ns) + text_field(2, spec.frame_id.encode())
    identity = text_field(2, b"\x21" + struct.pack("<d", 1.0))  # a unit quaternion, w = 1
    body += text_field(3, identity) + _fixed32(4, 4 * cloud.shape[1])
    for i, name in enumerate(("x", "y", "z", "intensity")[: cloud.shape[1]]):
        offset = _fixed32(2, 4 * i) if i else b""
        body += text_field(5, text_field(1, name.encode()) + offset + _field(3, _FLOAT32))
    return body + text_field(6, cloud.tobytes())


def text_message(text: str) -> bytes:
    """A line of text as `std_msgs/msg/String`."""
    return encode_string(text)


def read_text(data: bytes | memoryview) -> str:
    """The text of a `std_msgs/msg/String`."""
    return decode_string(data)


def event_message(spec: TopicSpec, t_ns: int, text: str) -> bytes:
    """An event as `foxglove.Log` at level INFO."""
    return timestamp(t_ns) + _field(2, _INFO) + text_field(3, text.encode()) + text_field(4, spec.topic.encode())
