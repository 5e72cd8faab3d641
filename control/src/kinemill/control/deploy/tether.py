"""Runs Ansible and ends all of it, however the operator's own process ends.

Run as a file by `engine` in a fresh interpreter, so nothing here imports kinemill. Ansible's workers live in sessions
of their own, and Ansible ignores the loss of its terminal: without this it would go on changing nodes after its
operator's process was killed, beside the next run.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_DIED = signal.SIGTERM
_ASKED_S = 20.0
"""How long Ansible may take to end after the operator asked for it."""
_ORPHANED_S = 5.0
"""How long where nobody is left to read what it says."""


class _Asked(BaseException):
    """Somebody wants Ansible to end."""

    def __init__(self, grace_s: float) -> None:
        super().__init__()
        self.grace_s = grace_s


def main() -> int:
    """argv: the parent's pid, the file to write our pid into, the command; returns the command's exit code."""
    parent, record, *command = sys.argv[1:]
    for number, grace_s in ((signal.SIGINT, _ASKED_S), (_PARENT_DIED, _ORPHANED_S)):
        signal.signal(number, _raiser(grace_s))
    libc = ctypes.CDLL(None, use_errno=True)
    # Workers whose Ansible is gone become our children, instead of nobody's.
    for option, value in ((_PR_SET_CHILD_SUBREAPER, 1), (_PR_SET_PDEATHSIG, int(_PARENT_DIED))):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")
    if os.getppid() != int(parent):
        return 75  # the parent died before the kernel was told to watch it
    fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.write(fd, str(os.getpid()).encode())
    os.close(fd)
    process: subprocess.Popen[bytes] | None = None
    try:
        process = subprocess.Popen(command)
        return process.wait()
    except _Asked as asked:
        for number in (signal.SIGINT, _PARENT_DIED):
            signal.signal(number, signal.SIG_IGN)
        return _end(process, asked.grace_s) if process is not None else 130


def _raiser(grace_s: float) -> Callable[[int, FrameType | None], None]:
    def ask(number: int, frame: FrameType | None) -> None:
        raise _Asked(grace_s)

    return ask


def _end(process: subprocess.Popen[bytes], grace_s: float) -> int:
    """Ask Ansible to end; kill what is left of it and its workers."""
    process.send_signal(signal.SIGINT)
    code = 130
    with contextlib.suppress(subprocess.TimeoutExpired):
        code = process.wait(timeout=grace_s)
    end_s = time.monotonic() + 10
    while (left := _below(os.getpid())) and time.monotonic() < end_s:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.05)
    return code


def _below(ancestor: int) -> list[int]:
    """Every living process below one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            words = path.read_text(encoding="ascii", errors="replace").rsplit(")", 1)[1].split()
            if words[0] != "Z":
                parents[int(path.parent.name)] = int(words[1])
    found: list[int] = []
    wanted = {ancestor}
    while wanted:
        wanted = {pid for pid, parent in parents.items() if parent in wanted and pid not in found}
        found += sorted(wanted)
    return found


if __name__ == "__main__":
    sys.exit(main())
