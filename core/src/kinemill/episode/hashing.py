"""sha256 of a stream in a thread of its own: it costs more than all the rest of writing or verifying.

hashlib lets go of the interpreter while it hashes, so the caller goes on meanwhile.
"""

from __future__ import annotations

import hashlib
import queue
import threading
from typing import Final

__all__ = ["StreamHash"]

_BLOCK: Final = 1 << 20
_AHEAD: Final = 8


class StreamHash:
    """Like a hashlib object, for long streams. Short ones never start the thread."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._block: list[bytes] = []
        self._size = 0
        self._queue: queue.Queue[list[bytes] | None] = queue.Queue(_AHEAD)
        self._thread: threading.Thread | None = None

    def update(self, data: bytes) -> None:
        """Take the next bytes; waits while more than 8 MiB or so are not hashed yet."""
        self._block.append(data)
        self._size += len(data)
        if self._size >= _BLOCK:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="sha256", daemon=True)
                self._thread.start()
            self._queue.put(self._block)
            self._block, self._size = [], 0

    def hexdigest(self) -> str:
        """Of all that was given; nothing can follow."""
        self.stop()
        for data in self._block:
            self._hash.update(data)
        self._block = []
        return self._hash.hexdigest()

    def stop(self) -> None:
        """End the thread."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while (block := self._queue.get()) is not None:
            for data in block:
                self._hash.update(data)
