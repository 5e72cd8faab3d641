"""Memory of batches that is used again: a fresh page costs more than writing it, and malloc lets such blocks pile up.

A batch of pictures is tens of megabytes. Taken from malloc for each batch, every page is faulted in and zeroed anew
(1.8 us each in a virtual machine, a tenth of a sample's CPU), and the allocator, which after the first large block
keeps those of its size in its own heap, lets the process grow by more than a batch. Here each large tensor is a mapping
of its own, on huge pages where the kernel gives them. It comes back when the last tensor that looks into it is gone,
in whichever thread that is, and serves the next batch; nothing is ever shared by two batches that are both in use.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Blocks"]

_PAGE = 4096
_HUGE = 2 << 20


class Blocks:
    """Blocks of one process; a forked child starts with none.

    Attributes:
        made: Blocks mapped so far.
        reused: Blocks that were there already.
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.made = 0
        self.reused = 0
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []
        self._back: deque[mmap.mmap] = deque()
        self._keep = 0

    def lease(self, sizes: Sequence[int]) -> list[npt.NDArray[np.uint8]]:
        """Memory of any content for the large tensors of one batch.

        Free blocks are kept for at most two such batches; what is over goes back to the system.

        Args:
            sizes: Bytes of each.

        Returns:
            Writable arrays of these sizes. Whatever looks into one has to hold it (as torch's `from_numpy` does): a
            block is free again when its array is collected.
        """
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]  # the parent's blocks are copies here, and its lock may be held
        with self._lock:
            self._take_back()
            self._keep = 2 * sum(map(_rounded, sizes))
            blocks = [self._one(_rounded(size)) for size in sizes]
            self._trim()
        out = []
        for size, block in zip(sizes, blocks, strict=True):
            array: npt.NDArray[np.uint8] = np.frombuffer(block, np.uint8, size)
            weakref.finalize(array, self._give, block).atexit = False
            out.append(array)
        return out

    @property
    def free_bytes(self) -> int:
        """Of the blocks that nobody uses."""
        return sum(map(len, self._free)) + sum(map(len, tuple(self._back)))

    def _one(self, size: int) -> mmap.mmap:
        for i in range(len(self._free) - 1, -1, -1):  # the one used last is the likeliest to be in a cache
            if len(self._free[i]) == size:
                self.reused += 1
                return self._free.pop(i)
        self.made += 1
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if size >= _HUGE:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                block.madvise(mmap.MADV_HUGEPAGE)
        return block

    def _give(self, block: mmap.mmap) -> None:
        """Take a block back. Runs wherever an array dies, also inside the garbage collector: it never waits."""
        self._back.append(block)
        if self._lock.acquire(blocking=False):
            try:
                self._take_back()
                self._trim()
            finally:
                self._lock.release()

    def _take_back(self) -> None:
        while self._back:
            self._free.append(self._back.popleft())

    def _trim(self) -> None:
        total = sum(map(len, self._free))
        while total > self._keep:
            total -= len(self._free.pop(0))


def _rounded(size: int) -> int:
    """Whole pages, so that batches of nearly the same size share blocks."""
    unit = _HUGE if size >= _HUGE else _PAGE
    return -(-size // unit) * unit
