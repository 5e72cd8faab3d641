"""MCAP records as bytes, by struct.

Layouts are those of the MCAP specification 0 (little endian throughout).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

__all__ = [
    "CHUNK_HEAD",
    "MAGIC",
    "MESSAGE_HEAD",
    "RECORD_HEAD",
    "Op",
    "chunk_index",
    "chunk_record",
    "message_index",
    "padding",
    "record",
    "string",
    "string_map",
]

MAGIC: Final = b"\x89MCAP0\r\n"


class Op:
    """Record opcodes. From 0x80 on they are private, and readers skip them."""

    HEADER: Final = 0x01
    FOOTER: Final = 0x02
    SCHEMA: Final = 0x03
    CHANNEL: Final = 0x04
    MESSAGE: Final = 0x05
    CHUNK: Final = 0x06
    MESSAGE_INDEX: Final = 0x07
    CHUNK_INDEX: Final = 0x08
    ATTACHMENT: Final = 0x09
    ATTACHMENT_INDEX: Final = 0x0A
    STATISTICS: Final = 0x0B
    METADATA: Final = 0x0C
    METADATA_INDEX: Final = 0x0D
    SUMMARY_OFFSET: Final = 0x0E
    DATA_END: Final = 0x0F
    PADDING: Final = 0x80


RECORD_HEAD: Final = struct.Struct("<BQ")
"""opcode, length of what follows"""
MESSAGE_HEAD: Final = struct.Struct("<BQHIQQ")
"""opcode, length, channel id, sequence, log time, publish time; the payload follows (length - 22 bytes)"""
MESSAGE_FIXED: Final = 22
CHUNK_HEAD: Final = struct.Struct("<BQQQQII")
"""opcode, length, start time, end time, uncompressed size, uncompressed crc, length of the compression's name"""
_U64: Final = struct.Struct("<Q")
_U32: Final = struct.Struct("<I")


def string(text: str) -> bytes:
    """A length-prefixed UTF-8 string."""
    data = text.encode()
    return _U32.pack(len(data)) + data


def string_map(items: Mapping[str, str]) -> bytes:
    """A map of strings, keys in the order given."""
    body = b"".join(string(k) + string(v) for k, v in items.items())
    return _U32.pack(len(body)) + body


def record(op: int, body: bytes) -> bytes:
    """A record with its head."""
    return RECORD_HEAD.pack(op, len(body)) + body


def chunk_record(start_ns: int, end_ns: int, *, raw_size: int, crc: int, compression: bytes, data_size: int) -> bytes:
    """The head of a Chunk record, up to the records that follow it."""
    length = 8 + 8 + 8 + 4 + 4 + len(compression) + 8 + data_size
    head = CHUNK_HEAD.pack(Op.CHUNK, length, start_ns, end_ns, raw_size, crc, len(compression))
    return head + compression + _U64.pack(data_size)


def message_index(channel_id: int, pairs: Iterable[int], count: int) -> bytes:
    """A MessageIndex record.

    Args:
        channel_id: The channel.
        pairs: `time, offset, time, offset, ...`; offsets count from the chunk's first record.
        count: Number of messages.
    """
    return struct.pack(f"<BQHI{2 * count}Q", Op.MESSAGE_INDEX, 6 + 16 * count, channel_id, 16 * count, *pairs)


def chunk_index(
    start_ns: int,
    end_ns: int,
    *,
    offset: int,
    length: int,
    index_offsets: tuple[tuple[int, int], ...],
    index_length: int,
    compression: bytes,
    data_size: int,
    raw_size: int,
) -> bytes:
    """A ChunkIndex record; `index_offsets` are pairs of channel id and absolute offset."""
    n = len(index_offsets)
    body = struct.pack("<QQQQI", start_ns, end_ns, offset, length, 10 * n)
    body += b"".join(struct.pack("<HQ", *pair) for pair in index_offsets)
    body += struct.pack("<QI", index_length, len(compression)) + compression + struct.pack("<QQ", data_size, raw_size)
    return record(Op.CHUNK_INDEX, body)


def padding(size: int) -> bytes:
    """A private record of exactly `size` bytes (9 or more), all zero after its head."""
    return RECORD_HEAD.pack(Op.PADDING, size - RECORD_HEAD.size) + bytes(size - RECORD_HEAD.size)
