"""Ties a command's life to its parent's, says who it is, and becomes it.

Run as a file by `engine` in a fresh interpreter, so nothing here imports kinemill. Without it, Ansible would go on
changing nodes after its operator's process was killed, beside the next run.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """argv: the parent's pid, the file to write our pid into, the command."""
    parent, record, *command = sys.argv[1:]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != int(parent):
        raise SystemExit(75)  # the parent died before the kernel was told to watch it
    fd = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.write(fd, str(os.getpid()).encode())
    os.close(fd)
    os.execvp(command[0], command)  # noqa: S606 - this is what it is for


if __name__ == "__main__":
    main()
