"""MCAP files taken apart into records, and put together again under right checksums: what a hostile writer does."""

from __future__ import annotations

import struct

from kinemill.episode import wire
from kinemill.episode.checksum import crc32

Records = list[tuple[int, bytearray]]


class Bytes:
    """A source in memory, as `verify` and `repack` read it."""

    def __init__(self, data: bytes) -> None:
        self.name = "memory"
        self.size = len(data)
        self.data = data

    def read(self, start: int, length: int) -> bytes:
        return self.data[start : start + length]


def records_of(data: bytes) -> Records:
    """(opcode, body) of each record."""
    found = []
    at = 8
    while at < len(data) - 8:
        op, length = struct.unpack_from("<BQ", data, at)
        found.append((op, bytearray(data[at + 9 : at + 9 + length])))
        at += 9 + length
    return found


def joined(records: Records) -> bytes:
    """The file that they make, as they are."""
    return wire.MAGIC + b"".join(wire.record(op, bytes(body)) for op, body in records) + wire.MAGIC


def sealed(records: Records) -> bytes:
    """The file that they make, under right checksums: of attachments, of the data and of the summary."""
    out = bytearray(wire.MAGIC)
    summary = 0
    for op, told in records:
        body = bytearray(told)
        if op == wire.Op.ATTACHMENT and len(body) > 4:
            body[-4:] = struct.pack("<I", crc32(bytes(body[:-4])))
        elif op == wire.Op.DATA_END and len(body) == 4:
            body = bytearray(struct.pack("<I", crc32(bytes(out))))
        elif op == wire.Op.FOOTER and len(body) == 20:
            body[:8] = struct.pack("<Q", summary if len(out) > summary else 0)
            head = wire.RECORD_HEAD.pack(op, 20) + bytes(body[:16])
            body[16:20] = struct.pack("<I", crc32(bytes(out[summary:]) + head))
        out += wire.record(op, bytes(body))
        if op == wire.Op.DATA_END:
            summary = len(out)
    return bytes(out) + wire.MAGIC
