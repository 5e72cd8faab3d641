"""The messages of a chunk's records, found without being looked at one by one where they repeat a pattern."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kinemill.episode import wire
from kinemill.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Listed", "OpenChunk", "Rounds", "walk"]

_MESSAGE: Final = wire.MESSAGE_HEAD
_FIXED: Final = _MESSAGE.size
_IS_MESSAGE: Final = wire.Op.MESSAGE


class Rounds(NamedTuple):
    """A pattern of message records that a chunk repeats to its end, as a state chunk does.

    Sequence numbers count up by one a channel, so that nothing of a message but its time has to be kept.
    """

    repeats: int
    size: int
    """Bytes of one round."""
    starts: tuple[int, ...]
    """Where each message record of the first round starts, and below where it ends."""
    ends: tuple[int, ...]
    channels: tuple[int, ...]
    sequence: tuple[int, ...]
    """Sequence number of each in the first round."""

    def records(self) -> NDArray[np.int64]:
        """As `OpenChunk.records`."""
        number = np.arange(self.repeats)[:, None]
        out = np.empty((4, self.repeats, len(self.starts)), np.int64)
        out[0] = number * self.size + self.starts
        out[1] = number * self.size + self.ends
        out[2] = self.channels
        out[3] = number * [self.channels.count(c) for c in self.channels] + self.sequence
        return out.reshape(4, -1)

    def place(self, index: int) -> tuple[int, int]:
        """Where a message record starts and ends."""
        number, lane = divmod(index, len(self.starts))
        return number * self.size + self.starts[lane], number * self.size + self.ends[lane]

    def counts_from(self, lanes: int) -> Sequence[int] | None:
        """As `OpenChunk.counts_from`, of so many lanes."""
        return self.sequence if lanes else None


class Listed(NamedTuple):
    """Message records one by one, as a video chunk has them: few, of which Python takes single ones faster."""

    numbers: list[int]
    """Start, end, channel, sequence number and log time of each."""

    def records(self) -> NDArray[np.int64]:
        """As `OpenChunk.records`."""
        return np.array(self.numbers, np.int64).reshape(-1, 5).T[:4].copy()

    def place(self, index: int) -> tuple[int, int]:
        """Where a message record starts and ends."""
        return self.numbers[5 * index], self.numbers[5 * index + 1]

    def counts_from(self, lanes: int) -> Sequence[int] | None:
        """As `OpenChunk.counts_from`, of so many lanes."""
        sequence = self.numbers[3::5]
        fits = lanes and [number + 1 for number in sequence[:-lanes]] == sequence[lanes:]
        return sequence[:lanes] if fits else None


class OpenChunk:
    """The messages of a chunk, in file order.

    Attributes:
        data: The uncompressed records.
        time: Log time of each message, int64.
        in_order: Times do not go back.
        lanes: Channels of one round, where the messages are rounds of the same channels, each once; else empty.
        rounds: The pattern, where the lengths repeat as well.
        place: Where the message record of an index starts and ends in the data.
    """

    __slots__ = ("_found", "_told", "data", "in_order", "lanes", "place", "rounds", "time")

    def __init__(
        self,
        data: memoryview,
        time: NDArray[np.int64],
        lanes: tuple[int, ...],
        told: Rounds | Listed,
        *,
        in_order: bool,
    ) -> None:
        self.data = data
        self.time = time
        self.in_order = in_order
        self.lanes = lanes
        self.rounds = told if isinstance(told, Rounds) else None
        self.place = told.place
        self._told = told
        self._found: NDArray[np.int64] | None = None

    @property
    def records(self) -> NDArray[np.int64]:
        """Offset, end, channel and sequence number of each message record: int64 [4, n]."""
        if self._found is None:
            self._found = self._told.records()
        return self._found

    @property
    def offset(self) -> NDArray[np.int64]:
        """Of each message record."""
        found: NDArray[np.int64] = self.records[0]
        return found

    @property
    def end(self) -> NDArray[np.int64]:
        """Where each record ends."""
        found: NDArray[np.int64] = self.records[1]
        return found

    @property
    def channel(self) -> NDArray[np.int64]:
        """Channel id of each message."""
        found: NDArray[np.int64] = self.records[2]
        return found

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Sequence number of each message."""
        found: NDArray[np.int64] = self.records[3]
        return found

    @property
    def span_ns(self) -> tuple[int, int]:
        """Earliest and latest log time; of a chunk with messages."""
        if self.in_order:
            return int(self.time[0]), int(self.time[-1])
        return int(self.time.min()), int(self.time.max())

    def of(self, channel: int) -> slice | NDArray[np.int64]:
        """Indices of one channel's messages, increasing."""
        if self.lanes:
            lanes = self.lanes
            return slice(lanes.index(channel), None, len(lanes)) if channel in lanes else slice(0, 0, 1)
        return np.flatnonzero(self.channel == channel)

    def counts_from(self) -> Sequence[int] | None:
        """First sequence number of each lane, where each counts up by one; else None."""
        return self._told.counts_from(len(self.lanes))


def walk(data: memoryview, *, where: str) -> OpenChunk:
    """Find the messages of a chunk's records.

    Where all messages repeat one pattern of channels and lengths and are numbered one by one, as a
    state chunk's are, the pattern is checked for all of them at once; else record by record.

    Raises:
        CorruptError: A record that passes the end, or is none that a chunk may hold.
    """
    return _walk_rounds(data) or _walk_records(data, where)


def _walk_rounds(data: memoryview) -> OpenChunk | None:
    """The messages, if the chunk is a repetition of its first few records."""
    size = len(data)
    starts: list[int] = []
    channels: list[int] = []
    sequence: list[int] = []
    at = 0
    while at + _FIXED <= size and len(starts) < 64:
        op, length, channel, number, _, _ = _MESSAGE.unpack_from(data, at)
        if op != _IS_MESSAGE or length < wire.MESSAGE_FIXED or 9 + length > size - at:
            return None
        if channels and channel == channels[0]:
            break
        starts.append(at)
        channels.append(channel)
        sequence.append(number)
        at += 9 + length
        if size // at < 8:  # few messages, as video chunks have: one by one is as fast
            return None
    if not at or size % at or (at < size and channel != channels[0]):
        return None
    count, lanes = size // at, len(starts)
    each = tuple(map(channels.count, channels))
    if max(map(operator.add, sequence, [(count - 1) * n for n in each])) >= 1 << 32:  # numbers start anew in between
        return None
    # the first 24 bytes of each head as three words: opcode and length; end of it, channel, sequence; log time
    heads = np.empty((count, lanes), _HEADS)
    for lane, start in enumerate(starts):
        heads[:, lane] = np.ndarray((count,), _HEADS, data, start, (at,))
    words = np.ndarray((3 * count * lanes,), _WORD, heads)
    # what is kept for the next chunk is small
    mask, expected = (_steps if count * lanes <= 1 << 14 else _steps.__wrapped__)(count - 1, each)
    steps = words[3 * lanes :] - words[: -3 * lanes]
    steps &= mask
    if np.count_nonzero(steps != expected):
        return None
    time = np.ndarray((count * lanes,), "<i8", heads, _TIME_AT, (_HEADS.itemsize,)).copy()
    rounds = Rounds(count, at, tuple(starts), (*starts[1:], at), tuple(channels), tuple(sequence))
    in_order = not np.count_nonzero(time[1:] < time[:-1])
    return OpenChunk(data, time, rounds.channels if max(each) == 1 else (), rounds, in_order=in_order)


_HEADS: Final = np.dtype("V24")
_WORD: Final = np.dtype("<u8")
_TIME_AT: Final = 15


@functools.lru_cache(maxsize=16)
def _steps(count: int, each: tuple[int, ...]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Which bits of the words of `count` rounds tell of what is regular, and how these differ from a round before.

    Args:
        count: Rounds.
        each: By how much the sequence number of each message in a round has grown.
    """
    mask = np.array([(1 << 64) - 1, (1 << 56) - 1, 0], np.uint64)
    expected = np.array([(0, n << 24, 0) for n in each], np.uint64)
    return np.tile(mask, count * len(each)), np.tile(expected.ravel(), count)


def _lanes(channel: list[int]) -> tuple[int, ...]:
    """As `OpenChunk.lanes`."""
    head = channel[:64]
    period = head.index(head[0], 1) if head and head[0] in head[1:] else len(head)
    if not period or len(channel) % period or len(set(head[:period])) != period:
        return ()
    return tuple(head[:period]) if channel == head[:period] * (len(channel) // period) else ()


def _walk_records(data: memoryview, where: str) -> OpenChunk:
    size = len(data)
    at = 0
    found: list[int] = []
    unpack = _MESSAGE.unpack_from
    while at < size:
        if size - at < 9:
            raise CorruptError(f"{where}: {size - at} bytes behind the last record")
        if size - at < _FIXED:
            op, length = wire.RECORD_HEAD.unpack_from(data, at)
            channel = sequence = time = 0
        else:
            op, length, channel, sequence, time, _ = unpack(data, at)
        end = at + 9 + length
        if end > size:
            raise CorruptError(f"{where}: a record of {length} bytes at {at}, {size - at - 9} are left")
        if op == _IS_MESSAGE:
            if length < 22:
                raise CorruptError(f"{where}: a message record of {length} bytes")
            found += (at, end, channel, sequence, time)
        elif op not in (wire.Op.SCHEMA, wire.Op.CHANNEL) and op < 0x80:
            raise CorruptError(f"{where}: a record of type {op:#x} inside a chunk")
        at = end
    times = found[4::5]
    try:
        log_time = np.array(times, np.int64)
    except OverflowError as exc:
        raise CorruptError(f"{where}: a message with a time over 2^63 ns") from exc
    return OpenChunk(data, log_time, _lanes(found[2::5]), Listed(found), in_order=times == sorted(times))
