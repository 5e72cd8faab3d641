"""sha256 and CRC-32 of a stream in a thread of its own: they cost more than all the rest of writing or verifying.

Both let go of the interpreter while they run, so the caller goes on meanwhile. Each hand-over has to win the
interpreter back, so small pieces are gathered into large blocks, in memory that is used again.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Final

from kinemill.episode.checksum import crc32

__all__ = ["StreamHash"]

_BLOCK: Final = 1 << 20
_AHEAD: Final = 2


class StreamHash:
    """Like a hashlib object, for long streams, with a CRC-32 beside it. Short ones never start the thread."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()
        self._crc = 0
        self._block: memoryview | None = None
        self._used = 0
        self._free: list[memoryview] = []
        self._work: queue.Queue[tuple[memoryview, memoryview | None] | None] = queue.Queue(_AHEAD)
        # what to hash, and the block to use again behind that
        self._thread: threading.Thread | None = None

    def update(self, data: bytes | memoryview) -> None:
        """Take the next bytes; waits while more than a few blocks are not hashed yet.

        Pieces of 1 MiB and more are not copied: they must not change before they are hashed.
        """
        size = len(data)
        if self._used + size > _BLOCK:
            self._hand_over()
        if size >= _BLOCK:
            self._put(memoryview(data), None)
            return
        if self._block is None:
            self._block = self._free.pop() if self._free else memoryview(bytearray(_BLOCK))
        self._block[self._used : self._used + size] = data
        self._used += size

    def crc(self) -> int:
        """CRC-32 of all bytes so far; waits until they are through."""
        if self._thread is not None:
            self._hand_over()
            self._work.join()
            return self._crc
        return self._crc if self._block is None else crc32(self._block[: self._used], self._crc)

    def hexdigest(self) -> str:
        """sha256 of all that was given; nothing can follow."""
        self.stop()
        if self._block is not None:
            self._sha.update(self._block[: self._used])
            self._block = None
        return self._sha.hexdigest()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._work.put(None)
            self._thread.join()
            self._thread = None

    def _hand_over(self) -> None:
        if self._block is not None and self._used:
            block, used = self._block, self._used
            self._block, self._used = None, 0
            self._put(block[:used], block)

    def _put(self, data: memoryview, block: memoryview | None) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="sha256", daemon=True)
            self._thread.start()
        self._work.put((data, block))

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            data, block = item
            self._sha.update(data)
            self._crc = crc32(data, self._crc)
            if block is not None:
                self._free.append(block)
            del item, data, block  # a caller that uses its memory again looks for views of it
            self._work.task_done()
