"""Several ranges at once: into memory, and into a local file."""

from __future__ import annotations

import ctypes
import functools
import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

from kinemill.contracts.store import ObjectMeta, Progress
from kinemill.errors import EnvironmentFault, TruncatedError

__all__ = ["Lanes", "download", "filler", "start_writing_back"]

LANES = 8
_SYNC_FILE_RANGE_WRITE = 2
"""From linux/fs.h: start writing what is dirty, wait for nothing."""


class Lanes:
    """A small thread pool that a forked child makes anew."""

    def __init__(self, count: int = LANES) -> None:
        self._count = count
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None
        self._pid = 0

    def pool(self) -> ThreadPoolExecutor:
        """The pool of this process."""
        if self._pid != os.getpid():
            self._lock = threading.Lock()  # a lock held at the fork by a thread that is gone stays held
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._count, thread_name_prefix="kinemill-store")
            return self._pool

    def map(self, body: Callable[[tuple[int, int]], bytes], ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`body` of each range, in order; the first error stops what has not begun and waits for what has.

        So no body runs on behind the caller's back, such as one that writes to a file which the caller closes.
        """
        if len(ranges) < 2:
            return [body(one) for one in ranges]
        futures = [self.pool().submit(body, one) for one in ranges]
        try:
            return [future.result() for future in futures]
        finally:
            wait([future for future in futures if not future.cancel()])


def download(
    lanes: Lanes,
    fill: Callable[[int, int, int], int],
    meta: ObjectMeta,
    path: Path,
    *,
    part_bytes: int,
    progress: Progress | None = None,
) -> ObjectMeta:
    """Write an object of `meta.size_bytes` to `path`, `part_bytes` a request, straight into place.

    Room is claimed before the first byte moves, so a full disk shows at once. On any error nothing is left. Each part
    is on its way to the disk while the next ones arrive, so that the caller's fsync has little left to wait for.

    Args:
        lanes: How many parts at once.
        fill: `(fd, start, length)` -> bytes written at `start`; see `filler` for one that has the bytes in memory.
        meta: Key and size.
        path: Local file, made or emptied.
        part_bytes: Bytes a request.
        progress: Told of each part that is written.

    Raises:
        EnvironmentFault: Not enough room.
        TruncatedError: A part was shorter than asked for.
    """
    guard = threading.Lock()
    written = 0
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        try:
            if meta.size_bytes:
                os.posix_fallocate(fd, 0, meta.size_bytes)
        except OSError as exc:
            room = os.statvfs(path.parent)
            raise EnvironmentFault(
                f"{path.parent}: no room for {meta.key}: needs {meta.size_bytes} bytes, "
                f"{room.f_bavail * room.f_frsize} free ({exc.strerror})"
            ) from exc

        def one(part: tuple[int, int]) -> bytes:
            nonlocal written
            start, length = part
            got = fill(fd, start, length)
            if got != length:
                raise TruncatedError(f"{meta.key}: got {got} of {length} bytes at {start}")
            start_writing_back(fd, start, length)
            if progress is not None:
                with guard:
                    written += length
                    progress(written, meta.size_bytes)
            return b""

        starts = range(0, meta.size_bytes, part_bytes)
        lanes.map(one, [(start, min(part_bytes, meta.size_bytes - start)) for start in starts])
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return meta


@functools.cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """The C library's call; None where it has none."""
    try:
        call = ctypes.CDLL(None).sync_file_range
    except (OSError, AttributeError):
        return None
    call.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    call.restype = ctypes.c_int
    return call


def start_writing_back(fd: int, start: int, length: int) -> None:
    """Ask the kernel to write these bytes of `fd` to the disk now, in the background.

    A hint: it promises nothing (fsync does), and what the file system says to it does not matter.
    """
    if (call := _sync_file_range()) is not None:
        call(fd, start, length, _SYNC_FILE_RANGE_WRITE)


def filler(fetch: Callable[[int, int], bytes | memoryview]) -> Callable[[int, int, int], int]:
    """A `fill` for `download` from a function that returns the bytes of a range."""

    def fill(fd: int, start: int, length: int) -> int:
        view = memoryview(fetch(start, length))
        got = len(view)
        while view:
            done = os.pwrite(fd, view, start)
            view, start = view[done:], start + done
        return got

    return fill
