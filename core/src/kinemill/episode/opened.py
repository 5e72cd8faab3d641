"""A fetched chunk, checked before anything in it is believed.

Every length is checked against what is left, decompression against a bound, and the whole against
the layout's word: size, times, counts, checksum and sequence numbers.
"""

from __future__ import annotations

import functools
import struct
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.scratch import Scratch
from kinemill.errors import CorruptError, LimitError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    import zstandard
    from numpy.typing import NDArray

__all__ = ["MAX_RAW", "ChunkHead", "OpenChunk", "Rounds", "decompress", "open_chunk", "read_chunk_head", "walk"]

MAX_RAW: Final = 1 << 30
"""No chunk may unpack to more than this."""
_HEAD: Final = wire.CHUNK_HEAD
_MESSAGE: Final = wire.MESSAGE_HEAD
_FIXED: Final = _MESSAGE.size
_U64: Final = struct.Struct("<Q")
_IS_MESSAGE: Final = wire.Op.MESSAGE


class ChunkHead(NamedTuple):
    """The fields of a Chunk record; `data_at` counts from the record's opcode."""

    t_first_ns: int
    t_last_ns: int
    raw_size: int
    crc: int
    compression: str
    data_at: int
    data_size: int


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


class OpenChunk:
    """The messages of a chunk, in file order.

    Attributes:
        data: The uncompressed records.
        time: Log time of each message, int64.
        in_order: Times do not go back.
        lanes: Channels of one round, where the messages are rounds of the same channels, each once; else empty.
        rounds: The pattern, where the lengths repeat as well.
    """

    __slots__ = ("_first", "_told", "data", "in_order", "lanes", "rounds", "time")

    def __init__(
        self,
        data: memoryview,
        time: NDArray[np.int64],
        lanes: tuple[int, ...],
        told: Rounds | NDArray[np.int64],
    ) -> None:
        self.data = data
        self.time = time
        self.in_order = not np.count_nonzero(time[1:] < time[:-1])
        self.lanes = lanes
        self.rounds = told if isinstance(told, Rounds) else None
        self._told = told
        self._first: Sequence[int] | None = () if self.rounds is None else self.rounds.sequence

    @property
    def records(self) -> NDArray[np.int64]:
        """Offset, end, channel and sequence number of each message record: int64 [4, n]."""
        if isinstance(self._told, Rounds):
            self._told = self._told.records()
        return self._told

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

    def of(self, channel: int) -> slice | NDArray[np.bool_]:
        """Index of one channel's messages."""
        if self.lanes:
            lanes = self.lanes
            return slice(lanes.index(channel), None, len(lanes)) if channel in lanes else slice(0, 0)
        mask: NDArray[np.bool_] = self.channel == channel
        return mask

    def counts_from(self) -> Sequence[int] | None:
        """First sequence number of each lane, where each counts up by one; else None."""
        if not self.lanes:
            return None
        if self._first == ():  # not looked at yet
            table = self.sequence.reshape(-1, len(self.lanes))
            self._first = None if np.count_nonzero(table[1:] - table[:-1] != 1) else table[0].tolist()
        return self._first


def read_chunk_head(view: memoryview | bytes, *, where: str, limit: int = MAX_RAW) -> ChunkHead:
    """Read a whole Chunk record's head.

    Raises:
        CorruptError: Not a Chunk record, or its lengths do not add up.
        LimitError: It would unpack to more than `limit` bytes.
    """
    if len(view) < _HEAD.size + 8:
        raise TruncatedError(f"{where}: {len(view)} bytes are too few for a chunk")
    op, length, t_first, t_last, raw_size, crc, name_size = _HEAD.unpack_from(view)
    if op != wire.Op.CHUNK or length != len(view) - wire.RECORD_HEAD.size:
        raise CorruptError(f"{where}: no Chunk record of {len(view)} bytes (opcode {op:#x}, length {length})")
    if name_size > 16 or _HEAD.size + name_size + 8 > len(view):
        raise CorruptError(f"{where}: a compression name of {name_size} bytes")
    compression = str(view[_HEAD.size : _HEAD.size + name_size], "ascii", "replace") if name_size else ""
    at = _HEAD.size + name_size
    (data_size,) = _U64.unpack_from(view, at)
    if data_size != len(view) - at - 8:
        raise CorruptError(f"{where}: the chunk says {data_size} bytes of records, it has {len(view) - at - 8}")
    if raw_size > limit:
        raise LimitError(f"{where}: the chunk would unpack to {raw_size} bytes; the bound is {limit}")
    return ChunkHead(t_first, t_last, raw_size, crc, compression, at + 8, data_size)


def decompress(
    data: memoryview | bytes, compression: str, raw_size: int, *, where: str, into: Scratch | None = None
) -> memoryview:
    """The records of a chunk, exactly `raw_size` bytes.

    Raises:
        CorruptError: Damaged, or of another size than declared.
        UnsupportedError: A compression that MCAP does not name.
    """
    if compression == "":
        if len(data) != raw_size:
            raise CorruptError(f"{where}: {len(data)} bytes of records, {raw_size} declared")
        return memoryview(data)
    if compression == "zstd":
        out = _unzstd(data, raw_size, where, into)
    elif compression == "lz4":
        out = _unlz4(data, raw_size, where)
    else:
        raise UnsupportedError(f"{where}: compression {compression!r}; known are none, zstd and lz4")
    if len(out) != raw_size:
        raise CorruptError(f"{where}: unpacks to {len(out)} bytes, {raw_size} declared")
    return memoryview(out)


_LOCAL = threading.local()


def _zstd() -> zstandard.ZstdDecompressor:
    """This thread's decompressor; making one costs more than a small chunk."""
    found: zstandard.ZstdDecompressor | None = getattr(_LOCAL, "zstd", None)
    if found is None:
        import zstandard

        found = _LOCAL.zstd = zstandard.ZstdDecompressor()
    return found


def _unzstd(data: memoryview | bytes, raw_size: int, where: str, into: Scratch | None) -> bytes | memoryview:
    import zstandard

    try:
        # the library allocates what the frame claims, so the claim is checked first
        claimed = zstandard.get_frame_parameters(data).content_size
        if claimed not in (raw_size, zstandard.CONTENTSIZE_UNKNOWN):
            raise CorruptError(f"{where}: zstd frame of {claimed} bytes, {raw_size} declared")
        if into is None:
            out: bytes = _zstd().decompress(data, max_output_size=max(raw_size, 1))
            return out
        room = into.take(raw_size + 1)
        with _zstd().stream_reader(data) as stream:
            done = 0
            while n := stream.readinto(room[done:]):
                done += n
    except zstandard.ZstdError as exc:
        raise CorruptError(f"{where}: zstd data is damaged ({exc})") from exc
    return room[:done]


def _unlz4(data: memoryview | bytes, raw_size: int, where: str) -> bytes:
    import lz4.frame

    try:
        small = lz4.frame.LZ4FrameDecompressor()
        out: bytes = small.decompress(bytes(data), max_length=raw_size + 1)
    except RuntimeError as exc:
        raise CorruptError(f"{where}: lz4 data is damaged ({exc})") from exc
    return out


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
    # the first 24 bytes of each head as three words: opcode and length; end of it, channel, sequence; log time
    heads = np.empty((count, lanes, 3), "<u8")
    lines = heads.view("V24")
    for lane, start in enumerate(starts):
        lines[:, lane, 0] = np.ndarray((count,), "V24", data, start, (at,))
    front, middle, back = heads[:, :, 0], heads[:, :, 1], heads[:, :, 2]
    distinct = len(set(channels)) == lanes
    each = 1 if distinct else np.array([channels.count(c) for c in channels], np.uint64)
    # an overflow of the sequence number would show in the bits above it, and goes record by record
    expected = (middle[0] & _LOW_56) + (_numbers(count) * each << _24)
    if np.count_nonzero(front != front[0]) or np.count_nonzero(middle & _LOW_56 != expected):
        return None
    time = (middle >> _56 | back << _8).reshape(-1).view(np.int64)
    rounds = Rounds(count, at, tuple(starts), (*starts[1:], at), tuple(channels), tuple(sequence))
    return OpenChunk(data, time, rounds.channels if distinct else (), rounds)


_8, _24, _56 = (np.uint64(n) for n in (8, 24, 56))
_LOW_56: Final = np.uint64((1 << 56) - 1)


@functools.lru_cache(maxsize=8)
def _numbers(count: int) -> NDArray[np.uint64]:
    return np.arange(count, dtype=np.uint64)[:, None]


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
    try:
        columns = np.array(found, np.int64).reshape(-1, 5).T.copy()
    except OverflowError as exc:
        raise CorruptError(f"{where}: a message with a time over 2^63 ns") from exc
    return OpenChunk(data, columns[4], _lanes(found[2::5]), columns[:4])


def open_chunk(
    view: memoryview | bytes,
    *,
    where: str,
    t_first_ns: int | None = None,
    t_last_ns: int | None = None,
    crc: int | None = None,
    must_have_crc: bool = True,
    limit: int = MAX_RAW,
    into: Scratch | None = None,
) -> OpenChunk:
    """Check a Chunk record and find its messages.

    Args:
        view: The whole record.
        where: For messages, such as `episode key, group cameras, chunk 12`.
        t_first_ns: What the layout says; None where nobody said.
        t_last_ns: As above.
        crc: As above.
        must_have_crc: Whether a chunk without a checksum is refused.
        limit: Most bytes it may unpack to.
        into: Memory to unpack into; None for fresh memory.

    Raises:
        CorruptError: Anything differs from what was written.
        LimitError: It would unpack to too much.
    """
    head = read_chunk_head(view, where=where, limit=limit)
    if t_first_ns is not None and (head.t_first_ns, head.t_last_ns) != (t_first_ns, t_last_ns):
        raise CorruptError(
            f"{where}: the chunk covers {head.t_first_ns}..{head.t_last_ns} ns, the layout says "
            f"{t_first_ns}..{t_last_ns} ns"
        )
    data = decompress(memoryview(view)[head.data_at :], head.compression, head.raw_size, where=where, into=into)
    if head.crc or must_have_crc:
        found = crc32(data)
        if found != head.crc or (crc is not None and crc != found):
            raise CorruptError(f"{where}: crc {found:08x}, written was {(crc if crc is not None else head.crc):08x}")
    chunk = walk(data, where=where)
    if len(chunk.time) and chunk.span_ns != (head.t_first_ns, head.t_last_ns):
        raise CorruptError(f"{where}: messages lie outside the chunk's own {head.t_first_ns}..{head.t_last_ns} ns")
    return chunk
