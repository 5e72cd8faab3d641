"""Chunks of groups that come later in the file, kept beside it until their turn."""

from __future__ import annotations

import contextlib
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

from kinemill.episode.chunks import BuiltChunk

__all__ = ["Spools", "close_quietly"]

_MEMORY: Final = 4 << 20
"""Bytes of a group that stay in memory; what is more goes to the disk."""


class Spools:
    """One temporary file a group, without a name, so that nothing is left of it whatever happens.

    Args:
        folder: Where; the system's own place where None.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else str(folder)
        self._files: dict[str, IO[bytes]] = {}
        self._chunks: dict[str, list[BuiltChunk]] = {}

    def add(self, group: str, chunk: BuiltChunk) -> None:
        """Keep a chunk."""
        file = self._files.get(group)
        if file is None:
            file = self._files[group] = tempfile.SpooledTemporaryFile(_MEMORY, dir=self._folder)  # noqa: SIM115
        file.write(chunk.head)
        file.write(chunk.data)
        file.write(chunk.index)
        sizes = struct.pack("<QQ", len(chunk.head) + len(chunk.data), len(chunk.index))
        self._chunks.setdefault(group, []).append(replace(chunk, head=b"", data=b"", index=sizes))

    def take(self, group: str) -> Iterator[tuple[BuiltChunk, bytes, bytes]]:
        """(chunk, its record, its message indexes) of a group, in order; they are gone then."""
        file = self._files.pop(group, None)
        if file is None:
            return
        with contextlib.closing(file):
            file.seek(0)
            for chunk in self._chunks.pop(group):
                record_size, index_size = struct.unpack("<QQ", chunk.index)
                yield chunk, file.read(record_size), file.read(index_size)

    def close(self) -> None:
        """Drop all of it."""
        for file in self._files.values():
            close_quietly(file)
        self._files.clear()
        self._chunks.clear()


def close_quietly(file: IO[bytes]) -> None:
    """Close a file whose last bytes may find no room."""
    with contextlib.suppress(OSError):
        file.close()
