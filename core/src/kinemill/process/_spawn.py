"""Becomes a server: records its own identity, drops rights, ties its life to its parent's, executes.

Run as a file by `kinemill.process.child` in a fresh interpreter, so nothing here imports kinemill.
A forked copy of a threaded program may not do these things between fork and exec; a new process may.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Do as the JSON in argv[1] says; the server's command line is argv[2:]."""
    order = json.loads(sys.argv[1])
    argv = sys.argv[2:]
    with open(f"/proc/{os.getpid()}/stat", encoding="ascii", errors="replace") as stat:  # noqa: PTH123 - no pathlib: start-up time
        start_ticks = int(stat.read().rsplit(")", 1)[1].split()[19])
    record = {
        "pid": os.getpid(),
        "start_ticks": start_ticks,
        "boot_id": order["boot_id"],
        "exe": order["exe"],
        "cwd": order["cwd"],
    }
    temporary = order["record"] + ".new"
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
    os.write(fd, json.dumps(record).encode())
    os.close(fd)
    os.replace(temporary, order["record"])  # noqa: PTH105 - as above
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(order["cwd"])
    os.umask(0o077)
    if order["uid"] is not None:
        os.setgroups([])
        os.setresgid(order["gid"], order["gid"], order["gid"])
        os.setresuid(order["uid"], order["uid"], order["uid"])
    if order["death_signal"]:
        # After the change of account, which clears it.
        if libc.prctl(_PR_SET_PDEATHSIG, order["death_signal"], 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        if os.getppid() != order["parent"]:
            raise SystemExit(75)  # the parent died before the kernel was told to watch it
    os.execve(argv[0], argv, dict(os.environ))  # noqa: S606 - this is what it is for


main()
