"""Memory for unpacked chunks that is used again: fresh pages cost more than unpacking does.

A read takes what it needs from its thread's store and gives it back when its answers are copied
out. Nothing that leaves a reader may point into it.
"""

from __future__ import annotations

import threading
from typing import Final

__all__ = ["Scratch", "scratch"]

KEEP: Final = 64 << 20
"""Bytes that a thread keeps between reads."""
_ROUND: Final = 1 << 16


class Scratch:
    """Buffers of one thread. Not thread-safe, by intent: each thread has its own."""

    __slots__ = ("_free", "_out")

    def __init__(self) -> None:
        self._free: list[bytearray] = []
        self._out: list[bytearray] = []

    def take(self, size: int) -> memoryview:
        """`size` bytes of any content, until `release`."""
        for i, buffer in enumerate(self._free):
            if len(buffer) >= size:
                self._out.append(self._free.pop(i))
                break
        else:
            self._out.append(bytearray(-(-size // _ROUND) * _ROUND))
        return memoryview(self._out[-1])[:size]

    def mark(self) -> int:
        """Where a read starts; for `release`."""
        return len(self._out)

    def release(self, mark: int) -> None:
        """Take back what was given out since `mark`; keep at most `KEEP` bytes of it."""
        while len(self._out) > mark:
            buffer = self._out.pop()
            if sum(map(len, self._free)) + len(buffer) <= KEEP:
                self._free.append(buffer)


_LOCAL = threading.local()


def scratch() -> Scratch:
    """This thread's."""
    found: Scratch | None = getattr(_LOCAL, "scratch", None)
    if found is None:
        found = _LOCAL.scratch = Scratch()
    return found
