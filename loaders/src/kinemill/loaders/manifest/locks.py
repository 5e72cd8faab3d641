"""Locks between the processes of one node: flock on small files beside the thing they guard.

The kernel drops a flock when its holder dies, so a killed process never blocks the next one. No
shared-memory names, no rank numbers: who shares the disk shares the lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

from kinemill.errors import DeadlineError, EnvironmentFault

__all__ = ["NETWORK_FILE_SYSTEMS", "file_system_of", "hold", "share", "try_exclusive"]

POLL_S = 0.05
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "afs", "9p", "virtiofs"}
)
"""Where a mapping's page fault is a remote read, and flock may not reach other hosts; any `fuse.*` counts too."""


def _open(path: Path) -> int:
    """The lock file, made if need be; read-only where it is another user's (flock needs no more)."""
    flags = os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, flags | os.O_RDWR | os.O_CREAT, 0o644)
    except PermissionError:
        return os.open(path, flags | os.O_RDONLY)


def _flock(path: Path, how: int) -> int | None:
    """A descriptor that holds `path` by `how | LOCK_NB`; None where somebody else does.

    A collector may remove a lock file while it holds it, so the lock counts only if the path still
    leads to the inode that was locked.
    """
    while True:
        fd = _open(path)
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except OSError as exc:
            os.close(fd)
            if exc.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise EnvironmentFault(
                f"{path}: cannot lock ({exc.strerror}); the manifest folder must lie on a local disk"
            ) from exc
        try:
            here = path.stat()
        except FileNotFoundError:
            here = None
        mine = os.fstat(fd)
        if here is not None and (here.st_dev, here.st_ino) == (mine.st_dev, mine.st_ino):
            return fd
        os.close(fd)


def try_exclusive(path: Path) -> int | None:
    """The lock's descriptor, or None at once where somebody holds it (shared or not)."""
    return _flock(path, fcntl.LOCK_EX)


def _holder(path: Path) -> str:
    """Who holds the lock, as the holder wrote it, in words."""
    try:
        told = json.loads(path.read_text() or "{}")
        pid, host = int(told["pid"]), str(told["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return "an unknown process (try: fuser " + str(path) + ")"
    alive = host != socket.gethostname() or Path(f"/proc/{pid}").exists()
    return f"pid {pid} on {host}" + ("" if alive else " (its children hold it, it is dead itself)")


@contextlib.contextmanager
def hold(path: Path, *, wait_s: float, what: str) -> Iterator[None]:
    """Hold `path` exclusively; wait at most `wait_s`.

    Raises:
        DeadlineError: Somebody held it all that time; the message names the pid.
    """
    deadline = time.monotonic() + wait_s
    while (fd := _flock(path, fcntl.LOCK_EX)) is None:
        if time.monotonic() >= deadline:
            raise DeadlineError(f"{what}: waited {wait_s:g} s for {_holder(path)}, which holds {path}")
        time.sleep(POLL_S)
    try:
        with contextlib.suppress(OSError):  # a lock file of another user is read-only for us, and locks all the same
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps({"pid": os.getpid(), "host": socket.gethostname()}).encode(), 0)
        yield
    finally:
        os.close(fd)


def share(path: Path, *, wait_s: float = 30.0) -> int:
    """A descriptor that holds `path` shared until it is closed in this process and its forks.

    Raises:
        DeadlineError: A collector held it all that time.
    """
    deadline = time.monotonic() + wait_s
    while (fd := _flock(path, fcntl.LOCK_SH)) is None:
        if time.monotonic() >= deadline:
            raise DeadlineError(f"{path}: a collector holds it since {wait_s:g} s; look at `kinemill load pull --gc`")
        time.sleep(POLL_S)
    return fd


def file_system_of(path: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> str:
    """The type of the file system that `path` lies on (`ext4`, `nfs4`, `fuse.s3fs`, ...); empty if unknown."""
    target = path.resolve()
    best, kind = -1, ""
    try:
        lines = mountinfo.read_text().splitlines()
    except OSError:
        return ""
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        mount = Path(fields[4].encode().decode("unicode_escape"))
        if (target == mount or mount in target.parents) and len(mount.parts) >= best:
            best, kind = len(mount.parts), right.split()[0]
    return kind
