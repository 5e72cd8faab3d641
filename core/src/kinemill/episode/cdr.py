"""`sensor_msgs/msg/JointState` in CDR: rows to records and back, thousands at a time.

Every message of a topic has the same length, because names and frame_id are constant. So a batch
of messages is a matrix of bytes: written by filling columns of a template, read by slicing them.
The template is compared byte by byte with every message before its values are believed; a
message that differs goes through `decode_one`, which parses it field by field.

CDR here is XCDR1 little endian: alignment counts from after the 4-byte encapsulation header.
"""

from __future__ import annotations

import functools
import itertools
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.errors import CorruptError, UnsupportedError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CdrCursor", "JointTemplate", "decode_one", "encode_string", "joint_template"]

_HEAD = b"\0\1\0\0"
_FIELDS = ("position", "velocity", "effort")
_MAX_ITEMS = 1 << 20
_TILE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class JointTemplate:
    """One message's bytes, and where its values lie.

    Attributes:
        data: The message with zero stamp and values.
        stamp: Offset of `sec` (i32) and `nanosec` (u32).
        blocks: (offset, count) of each float64 array that holds values, in storage order.
        words: (start, NumPy type, bytes) of what is the same in every message.
    """

    data: NDArray[np.uint8]
    stamp: int
    blocks: tuple[tuple[int, int], ...]
    words: tuple[tuple[int, str, bytes], ...]

    @property
    def columns(self) -> int:
        """Values in a row."""
        return sum(count for _, count in self.blocks)

    def encode(self, t_ns: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.uint8]:
        """Messages as rows of bytes.

        Args:
            t_ns: Stamps, int64 [n].
            values: float64 [n, columns].

        Returns:
            uint8 [n, message length].
        """
        n = len(t_ns)
        out = np.empty((n, len(self.data)), np.uint8)
        out[:] = self.data
        stamp = np.empty((n, 2), "<u4")
        stamp[:, 0] = t_ns // 1_000_000_000
        stamp[:, 1] = t_ns % 1_000_000_000
        out[:, self.stamp : self.stamp + 8] = stamp.view(np.uint8)
        column = 0
        for offset, count in self.blocks:
            block = np.ascontiguousarray(values[:, column : column + count], "<f8")
            out[:, offset : offset + 8 * count] = block.view(np.uint8)
            column += count
        return out

    def read(self, data: memoryview | NDArray[np.uint8], first: int, step: int, n: int) -> NDArray[np.float64] | None:
        """The values of messages that lie at equal distances: float64 [n, columns].

        Args:
            data: Bytes that hold them.
            first: Where the first message starts.
            step: From one start to the next, bytes.
            n: How many.

        Returns:
            None where any message differs from the template in a constant byte.
        """
        for start, kind, expected in self.words:
            found: NDArray[Any] = np.ndarray((n,), kind, data, first + start, (step,))
            # one comparison of memory for many messages, of as much as stays in a core's cache
            some = max(1, _TILE_BYTES // len(expected))
            for low in range(0, n, some):
                part = found[low : low + some]
                if part.tobytes() != _tile(expected, len(part)):
                    return None
        out = np.empty((n, self.columns), np.float64)
        if self.blocks:
            # arrays of equal length follow each other at equal distances, so that one copy takes all of them
            offset, count = self.blocks[0]
            apart = self.blocks[1][0] - offset if len(self.blocks) > 1 else 8 * count
            shape3 = (n, len(self.blocks), count)
            out.reshape(shape3)[:] = np.ndarray(shape3, "<f8", data, first + offset, (step, apart, 8))
        return out


def joint_template(names: tuple[str, ...], fields: tuple[str, ...], frame_id: str = "") -> JointTemplate:
    """The template of a topic.

    Args:
        names: Joint names.
        fields: Which of position, velocity, effort hold values; the others are empty arrays.
        frame_id: The header's.
    """
    body = bytearray(8)  # stamp

    def align(n: int) -> None:
        body.extend(bytes(-len(body) % n))

    def text(value: str) -> None:
        align(4)
        raw = value.encode() + b"\0"
        body.extend(struct.pack("<I", len(raw)) + raw)

    text(frame_id)
    align(4)
    body += struct.pack("<I", len(names))
    for name in names:
        text(name)
    blocks = []
    for field in _FIELDS:
        count = len(names) if field in fields else 0
        align(4)
        body += struct.pack("<I", count)
        if count:
            align(8)
            blocks.append((4 + len(body), count))
            body += bytes(8 * count)
    data = np.frombuffer(_HEAD + bytes(body), np.uint8)
    free = [(4, 12), *((offset, offset + 8 * count) for offset, count in blocks), (len(data), len(data))]
    edges = [(a, b) for (_, a), (b, _) in itertools.pairwise([(0, 0), *free])]
    words = tuple(_word(data, a, b) for a, b in edges if b > a)
    return JointTemplate(data, 4, tuple(blocks), words)


def _word(data: NDArray[np.uint8], start: int, end: int) -> tuple[int, str, bytes]:
    """A stretch of the template as it is compared; of 4 and 8 bytes as a number, which is copied faster."""
    part = data[start:end].tobytes()
    return start, f"{'<u' if len(part) in (4, 8) else 'V'}{len(part)}", part


@functools.lru_cache(maxsize=32)
def _tile(part: bytes, n: int) -> bytes:
    return part * n


class CdrCursor:
    """Reads the fields of a CDR message; no length in it is believed before it is checked."""

    __slots__ = ("_big", "at", "data")

    def __init__(self, data: bytes | memoryview) -> None:
        self.data = memoryview(data)
        if len(self.data) < 4 or self.data[0] != 0 or self.data[1] not in (0, 1):
            raise UnsupportedError(f"CDR encapsulation {bytes(self.data[:4]).hex(' ')}: only plain CDR (00 00, 00 01)")
        self._big = self.data[1] == 0
        self.at = 4

    def number(self, code: str, size: int, align: int) -> Any:
        """A number by its struct code."""
        self.at += -(self.at - 4) % align
        if self.at + size > len(self.data):
            raise CorruptError(f"CDR message of {len(self.data)} bytes ends inside a field at byte {self.at}")
        value = struct.unpack_from((">" if self._big else "<") + code, self.data, self.at)[0]
        self.at += size
        return value

    def count(self, item: int, *, most: int = _MAX_ITEMS) -> int:
        """The length of an array of items of at least so many bytes."""
        n: int = self.number("I", 4, 4)
        if n > most or n * item > len(self.data) - self.at:
            raise CorruptError(f"CDR message declares {n} items where {len(self.data) - self.at} bytes are left")
        return n

    def text(self) -> str:
        """A string."""
        n = self.count(1)
        raw = bytes(self.data[self.at : self.at + n])
        self.at += n
        try:
            return raw.rstrip(b"\0").decode()
        except UnicodeDecodeError as exc:
            raise CorruptError(f"CDR string is not UTF-8: {raw[:20]!r}") from exc

    def raw(self) -> memoryview:
        """A `uint8[]`."""
        n = self.count(1, most=1 << 30)
        self.at += n
        return self.data[self.at - n : self.at]

    def doubles(self) -> NDArray[np.float64]:
        """A `float64[]`."""
        n = self.count(8)
        if n == 0:
            return np.empty(0)
        self.at += -(self.at - 4) % 8
        if self.at + 8 * n > len(self.data):
            raise CorruptError(f"CDR message of {len(self.data)} bytes ends inside an array of {n} values")
        values = np.frombuffer(self.data, ">f8" if self._big else "<f8", n, self.at).astype(np.float64)
        self.at += 8 * n
        return values


def decode_one(
    data: bytes | memoryview,
) -> tuple[str, tuple[str, ...], tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]]:
    """One JointState of any shape: (frame_id, names, (position, velocity, effort)).

    Raises:
        CorruptError: It ends too early, or declares more than it holds.
        UnsupportedError: Another encapsulation.
    """
    cursor = CdrCursor(data)
    cursor.number("i", 4, 4)
    cursor.number("I", 4, 4)
    frame_id = cursor.text()
    names = tuple(cursor.text() for _ in range(cursor.count(4)))
    return frame_id, names, (cursor.doubles(), cursor.doubles(), cursor.doubles())


def encode_string(text: str) -> bytes:
    """A `std_msgs/msg/String`."""
    raw = text.encode() + b"\0"
    return _HEAD + struct.pack("<I", len(raw)) + raw


def decode_string(data: bytes | memoryview) -> str:
    """The text of a `std_msgs/msg/String`.

    Raises:
        CorruptError: Not one.
    """
    return CdrCursor(data).text()
