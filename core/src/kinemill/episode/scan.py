"""Walk an MCAP from its first byte to the last complete record, trusting no length in it.

For what has to see the whole file: `verify`, and `repack` of files whose index is missing or lies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol, Self

from kinemill.contracts.store import Store
from kinemill.episode import wire
from kinemill.errors import CorruptError, LimitError, TruncatedError

__all__ = ["FileSource", "Record", "Source", "StoreSource", "records_in"]

MAX_RECORD: Final = 1 << 30
"""Longer records are refused, as other tools do."""
_AHEAD: Final = 4 << 20
_BLOCK: Final = 2 << 20
_BLOCKS: Final = 5


class Source(Protocol):
    """Bytes of a known size that can be read anywhere."""

    name: str
    size: int

    def read(self, start: int, length: int) -> bytes:
        """Exactly `length` bytes."""
        ...


class FileSource:
    """A local file. The handle is opened at once and closed by `close` or the with-statement."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self._file: IO[bytes] = path.open("rb", buffering=0)
        self.size = self._file.seek(0, 2)

    def read(self, start: int, length: int) -> bytes:
        """As `Source.read`."""
        data = os.pread(self._file.fileno(), length, start)
        while len(data) < length:
            more = os.pread(self._file.fileno(), length - len(data), start + len(data))
            if not more:
                raise TruncatedError(f"{self.name}: it ends at {start + len(data)}, {start + length} expected")
            data += more
        return data

    def read_into(self, start: int, room: memoryview) -> None:
        """Fill `room`; as `read` in all else."""
        done = 0
        while done < len(room):
            n = os.preadv(self._file.fileno(), [room[done:]], start + done)
            if not n:
                raise TruncatedError(f"{self.name}: it ends at {start + done}, {start + len(room)} expected")
            done += n

    def close(self) -> None:
        """Give the handle back."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class StoreSource:
    """An object in a store, by ranged reads of 4 MiB and more."""

    def __init__(self, store: Store, key: str) -> None:
        self.name = f"{store.url}/{key}"
        self.size = store.head(key).size_bytes
        self._store = store
        self._key = key

    def read(self, start: int, length: int) -> bytes:
        """As `Source.read`."""
        return self._store.get_range(self._key, start, length) if length else b""

    def close(self) -> None:
        """Nothing is held."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Record:
    """One record of the file: its place, and all its bytes from the opcode on."""

    op: int
    offset: int
    data: memoryview
    block: memoryview
    """What was read at once, of which `data` is a part."""
    block_at: int
    """Where that starts in the file."""

    @property
    def body(self) -> memoryview:
        """What follows opcode and length."""
        return self.data[wire.RECORD_HEAD.size :]


class _Buffered:
    """Sequential reads out of large blocks. Of a file, into memory that is used again once nobody looks at it."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.block_at = 0
        self.block = memoryview(b"")
        self._pool: list[bytearray] = []

    def get(self, start: int, length: int) -> memoryview:
        at = start - self.block_at
        if at >= 0 and at + length <= len(self.block):
            return self.block[at : at + length]
        left = self._source.size - start
        self.block_at, self.block = start, memoryview(b"")
        if isinstance(self._source, FileSource) and length <= _BLOCK:
            self.block = memoryview(self._room())[: min(_BLOCK, left)]
            self._source.read_into(start, self.block)
        else:
            self.block = memoryview(self._source.read(start, min(max(length, _AHEAD), left)))
        return self.block[:length]

    def _room(self) -> bytearray:
        for block in self._pool:
            if _unseen(block):
                return block
        fresh = bytearray(_BLOCK)
        if len(self._pool) < _BLOCKS:
            self._pool.append(fresh)
        return fresh


def _unseen(block: bytearray) -> bool:
    """Whether no view of it is left: its size could not be changed then."""
    try:
        block.append(0)
    except BufferError:
        return False
    del block[-1]
    return True


def records_in(source: Source) -> Iterator[Record]:
    """Every record from the start, the footer last.

    A record's bytes are views of a block of the file, which lives as long as they do.

    Raises:
        CorruptError: No MCAP, or a record that cannot be.
        TruncatedError: The file ends inside a record, or without a footer. All complete records
            were handed out before.
        LimitError: A record of more than 1 GiB.
    """
    if source.size < len(wire.MAGIC) or bytes(source.read(0, len(wire.MAGIC))) != wire.MAGIC:
        raise CorruptError(f"{source.name}: it does not start as an MCAP does")
    buffered = _Buffered(source)
    at = len(wire.MAGIC)
    while True:
        left = source.size - at
        if left < wire.RECORD_HEAD.size:
            raise TruncatedError(
                f"{source.name}: it ends at {source.size} without a footer; the last record ended at {at}"
            )
        op, length = wire.RECORD_HEAD.unpack(buffered.get(at, wire.RECORD_HEAD.size))
        if op == 0:
            raise CorruptError(f"{source.name}: a record of type 0 at {at}")
        whole = wire.RECORD_HEAD.size + length
        if whole > left:
            raise TruncatedError(
                f"{source.name}: a record of type {op:#x} at {at} says {length} bytes, {left - 9} are left"
            )
        if length > MAX_RECORD:
            raise LimitError(f"{source.name}: a record of {length >> 20} MiB at {at}; at most {MAX_RECORD >> 20} MiB")
        yield Record(op, at, buffered.get(at, whole), buffered.block, buffered.block_at)
        at += whole
        if op == wire.Op.FOOTER:
            return
