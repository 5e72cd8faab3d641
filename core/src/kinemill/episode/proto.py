"""The protobuf messages of the hot path, by hand: one camera frame in, one out.

Field numbers are those of Foxglove's schemas. `top_fields` walks any message's top level without
trusting a length in it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

from kinemill.errors import CorruptError

__all__ = ["text_field", "top_fields", "varint", "video_bytes", "video_prefix", "video_suffix"]

NS = 1_000_000_000


def varint(value: int) -> bytes:
    """Base 128, least significant group first."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def text_field(number: int, data: bytes) -> bytes:
    """A length-delimited field."""
    return varint(number << 3 | 2) + varint(len(data)) + data


@functools.lru_cache(maxsize=64)
def _seconds(seconds: int) -> bytes:
    return b"\x08" + varint(seconds) if seconds else b""


@functools.lru_cache(maxsize=64)
def timestamp(t_ns: int) -> bytes:
    """`google.protobuf.Timestamp` as field 1; zero parts are left out, as proto3 does.

    Cameras of one tick share it, so the last ones are kept.
    """
    seconds, n = divmod(t_ns, NS)
    if n >= 1 << 28:
        tail = bytes((16, n & 127 | 128, n >> 7 & 127 | 128, n >> 14 & 127 | 128, n >> 21 & 127 | 128, n >> 28))
    else:
        tail = b"\x10" + varint(n) if n else b""
    body = _seconds(seconds) + tail
    return b"\x0a" + bytes((len(body),)) + body


def video_prefix(t_ns: int, frame_id: bytes, size: int) -> bytes:
    """A CompressedVideo up to its data; `frame_id` is that whole field, ready made."""
    if 1 << 14 <= size < 1 << 21:  # three bytes of length, as most frames have
        return timestamp(t_ns) + frame_id + bytes((0x1A, size & 127 | 128, size >> 7 & 127 | 128, size >> 14))
    return timestamp(t_ns) + frame_id + b"\x1a" + varint(size)


def video_suffix(codec: str) -> bytes:
    """What follows the data: the field `format`."""
    return text_field(4, codec.encode())


def _read_varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise CorruptError("protobuf message ends inside a varint, or a varint is over 10 bytes long")
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7


def top_fields(data: bytes | memoryview) -> Iterator[tuple[int, int | memoryview]]:
    """(number, value) of each top-level field: int for varint and fixed, a view for length-delimited.

    Raises:
        CorruptError: A length passes the end, or an unknown wire type.
    """
    view = memoryview(data)
    at = 0
    while at < len(view):
        key, at = _read_varint(view, at)
        wire = key & 7
        if wire == 0:
            value, at = _read_varint(view, at)
            yield key >> 3, value
            continue
        if wire == 2:
            size, at = _read_varint(view, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise CorruptError(f"protobuf message: wire type {wire} at byte {at}")
        if size > len(view) - at:
            raise CorruptError(f"protobuf message: field {key >> 3} of {size} bytes, {len(view) - at} are left")
        yield key >> 3, view[at : at + size] if wire == 2 else int.from_bytes(view[at : at + size], "little")
        at += size


def video_bytes(data: memoryview, start: int = 0, end: int | None = None) -> tuple[memoryview, str]:
    """Data and format of a CompressedVideo.

    Args:
        data: Bytes that hold it.
        start: Where it starts.
        end: Where it ends; None at the end of `data`.

    Raises:
        CorruptError: Not such a message.
    """
    if end is None:
        end = len(data)
    # the shape that `video_prefix` and `video_suffix` give, as most writers do
    tail = end - len(_H264)
    if tail - start > _HEAD and data[tail:end] == _H264 and data[start] == _TIME and data[start + 1] <= 20:
        at = start + 2 + data[start + 1]
        if data[at] == _FRAME_ID and data[at + 1] <= 100:
            at += 2 + data[at + 1]
        if data[at] == _DATA and data[at + 1] > 127 and (data[at + 2] < 128 or data[at + 3] < 128):
            size, at = data[at + 1] & 127 | data[at + 2] << 7, at + 3
            if size >> 14:  # a third byte follows
                size, at = size & 0x3FFF | data[at] << 14, at + 1
            if at + size == tail:
                return data[at:tail], "h264"
    return _video_bytes_slow(data[start:end])


_TIME: Final = 0x0A
_FRAME_ID: Final = 0x12
_DATA: Final = 0x1A
_HEAD: Final = 128
_H264: Final = video_suffix("h264")


def _video_bytes_slow(data: memoryview) -> tuple[memoryview, str]:
    payload: memoryview | None = None
    codec = ""
    for number, value in top_fields(data):
        if isinstance(value, memoryview):
            if number == 3:
                payload = value
            elif number == 4:
                codec = str(value, "ascii", "replace")
    if payload is None:
        raise CorruptError("a CompressedVideo message without data")
    return payload, codec
