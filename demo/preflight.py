"""Looks before anything is started: room, rights, a living run. Every refusal says what to do."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from kinemill.errors import ConflictError, ContractError, EnvironmentFault
from kinemill.process import ProcessId
from kinemill.records import dumps, loads

__all__ = ["alone", "check_machine", "make_folder"]

NEEDED_BYTES = 2 << 30
"""Measured: 0.7 GiB for three drops, their episodes, the servers and the checkpoints; the rest is margin."""
NEEDED_MEMORY_BYTES = 2 << 30
"""Measured: 1.6 GiB for two ranks, two servers and the orchestrator."""


def make_folder(folder: Path) -> None:
    """The demo's folder, private, or why it cannot be.

    Raises:
        EnvironmentFault: Read-only, no right, or something that is no folder stands there.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
        (folder / "state").mkdir(mode=0o711, exist_ok=True)
    except OSError as exc:
        why = {
            errno.EROFS: "this checkout is read-only",
            errno.EACCES: "you may not write there",
            errno.EPERM: "you may not write there",
            errno.ENOSPC: "the disk is full",
            errno.EDQUOT: "your disk quota is used up",
        }.get(exc.errno or 0, exc.strerror or str(exc))
        raise EnvironmentFault(
            f"{folder}: {why}; name a folder that you can write: --dir /path, or make demo-local DEMO_DIR=/path"
        ) from exc
    owner = (folder / "state").stat()
    if owner.st_uid != os.geteuid() or not stat.S_ISDIR(owner.st_mode):
        raise EnvironmentFault(
            f"{folder / 'state'} belongs to another user (uid {owner.st_uid}): run as that user, or name another: "
            "make demo-local DEMO_DIR=/path/to/folder"
        )


def check_machine(folder: Path) -> list[str]:
    """Room and the loopback interface.

    Returns:
        Warnings, one line each.

    Raises:
        EnvironmentFault: The demo could not end well here.
    """
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES and not (folder / "report.html").exists():
        raise EnvironmentFault(
            f"{folder}: {free / 2**30:.1f} GiB free, {NEEDED_BYTES / 2**30:.0f} needed; free some room, or name "
            "another disk: make demo-local DEMO_DIR=/path/to/folder"
        )
    try:
        with socket.create_server(("127.0.0.1", 0)):
            pass
    except OSError as exc:
        raise EnvironmentFault(
            f"cannot listen on 127.0.0.1 ({exc.strerror}): bring the loopback interface up (ip link set lo up)"
        ) from exc
    warnings = []
    memory = _available_memory()
    if memory is not None and memory < NEEDED_MEMORY_BYTES:
        warnings.append(f"only {memory / 2**30:.1f} GiB of memory are available; it may be slow or be killed for it")
    if (os.cpu_count() or 1) < 2:
        warnings.append("one core only: the two training ranks take turns")
    return warnings


def _available_memory() -> int | None:
    with contextlib.suppress(OSError, StopIteration, ValueError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        return int(next(ln.split()[1] for ln in lines if ln.startswith("MemAvailable"))) * 1024
    return None


@contextlib.contextmanager
def alone(folder: Path, *, wait_s: float = 300.0) -> Iterator[int]:
    """One demo at a time in a folder.

    The lock is the kernel's, so a killed run leaves none behind. Commands inherit it: where a run was killed and one of
    its commands is still ending, the next run waits for that.

    Args:
        folder: The demo's.
        wait_s: For the commands of a killed run.

    Yields:
        The lock's descriptor, to be passed on to commands.

    Raises:
        ConflictError: A demo lives, or what a killed one left does not end; the message names it.
    """
    fd = os.open(folder / "state" / "demo.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as exc:
                holder = _holder(os.pread(fd, 512, 0))
                if holder is not None and holder.alive():
                    raise ConflictError(
                        f"{folder}: the demo is running already, as process {holder.pid}; "
                        f"wait for it, or stop it: kill {holder.pid}"
                    ) from exc
                if time.monotonic() > deadline:
                    raise ConflictError(
                        f"{folder}: a command of an earlier run does not end; see who holds it: "
                        f"fuser -v {folder / 'state' / 'demo.lock'}"
                    ) from exc
                time.sleep(0.2)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{dumps(ProcessId.of(os.getpid()))}\n".encode(), 0)
        yield fd
    finally:
        os.close(fd)


def _holder(text: bytes) -> ProcessId | None:
    """Who wrote the lock's file. A number alone may be another process by now, which nobody should be told to kill."""
    with contextlib.suppress(ContractError):
        return loads(ProcessId, text)
    return None
