"""Measures local disks: room, inodes, read-only state, and whether a write can be read back.

The folders are ones that jobs may write, so nothing is followed: directory descriptors and
O_NOFOLLOW throughout, and the probe file is made with a fresh name and removed by descriptor.
"""

from __future__ import annotations

import contextlib
import os

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]

_ST_RDONLY = 1
_PATTERN = b"kinemill write probe\n" * 200


def read(ctx: Context, emit: Emit) -> None:
    """Emit `disk.<folder>` for each scratch folder: free percentages, read_only, write ("ok" or what failed)."""
    for folder in ctx.settings.hardware.scratch_dirs:
        emit(f"disk.{folder}", _folder(folder))


def _folder(folder: str) -> dict[str, object]:
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as exc:
        return {"error": exc.strerror or str(exc)}
    try:
        st = os.fstatvfs(fd)
        return {
            "free_percent": round(100.0 * st.f_bavail / st.f_blocks, 2) if st.f_blocks else None,
            "free_inodes_percent": round(100.0 * st.f_favail / st.f_files, 2) if st.f_files else None,
            "read_only": bool(st.f_flag & _ST_RDONLY),
            "write": _write_probe(fd),
        }
    finally:
        os.close(fd)


def _write_probe(directory: int) -> str:
    """Write, sync, read back, remove. The name is unguessable and created exclusively."""
    name = f".kinemill-probe-{os.urandom(8).hex()}"
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=directory)
    except OSError as exc:
        return exc.strerror or str(exc)
    try:
        if os.write(fd, _PATTERN) != len(_PATTERN):
            return "short write"
        os.fdatasync(fd)
        return "ok" if os.pread(fd, len(_PATTERN), 0) == _PATTERN else "read back other bytes"
    except OSError as exc:
        return exc.strerror or str(exc)
    finally:
        os.close(fd)
        with contextlib.suppress(OSError):
            os.unlink(name, dir_fd=directory)
