"""A fetched chunk, checked before anything in it is believed.

Every length is checked against what is left, decompression against a bound, and the whole against
the layout's word: size, times, counts, checksum and sequence numbers.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.scratch import Scratch
from kinemill.episode.walk import OpenChunk, walk
from kinemill.errors import CorruptError, LimitError, TruncatedError, UnsupportedError

if TYPE_CHECKING:
    import zstandard

__all__ = ["MAX_RAW", "ChunkHead", "decompress", "open_chunk", "read_chunk_head"]

MAX_RAW: Final = 1 << 30
"""No chunk may unpack to more than this."""
_HEAD: Final = wire.CHUNK_HEAD
_U64: Final = struct.Struct("<Q")


class ChunkHead(NamedTuple):
    """The fields of a Chunk record; `data_at` counts from the record's opcode."""

    t_first_ns: int
    t_last_ns: int
    raw_size: int
    crc: int
    compression: str
    data_at: int
    data_size: int


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
        raise LimitError(
            f"{where}: the chunk would unpack to {raw_size} bytes, {limit} are left of the bound of one read; "
            "read less at a time, or look at the file with `kinemill episode verify`"
        )
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
