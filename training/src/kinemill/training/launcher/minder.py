"""One small process beside each rank that outlives it: opens its logs, watches its heartbeat, reports its end.

torchrun starts the minder, the minder starts the rank::

    python -m kinemill.training.launcher.minder --run DIR [--hang-s S] -- COMMAND...

A rank that SIGKILL or SIGSEGV ends can write nothing itself, and its peers only say that the connection was reset; the
minder is the parent, so it knows. It imports no torch (10 MB, not 300) and ends the way its rank ended, so that
torchrun sees the same. If torchrun dies the minder asks its rank to stop; if the minder dies the kernel kills the rank.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from kinemill import records
from kinemill.contracts import AttemptOutcome, ExitCode
from kinemill.training.attempts.evidence import ENV_EVIDENCE, ENV_LAUNCH, ExitReport, read_verdict
from kinemill.training.attempts.history import finish_meta

__all__ = ["main"]

WATCHED: Final = {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
TICK_S: Final = 1.0
STACKS_S: Final = 10.0
"""How long a hung rank gets to write its stacks before it is killed."""
PR_SET_PDEATHSIG: Final = 1


def main(argv: list[str] | None = None) -> int:
    """Run one rank to its end; returns or dies as it did."""
    parser = argparse.ArgumentParser(prog="kinemill.training.launcher.minder", description=__doc__)
    parser.add_argument("--run", type=Path, required=True, help="the run folder")
    parser.add_argument("--hang-s", type=float, default=0.0, help="end a rank after this long without a step; 0 never")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    attempts: Path = args.run / "attempts"
    launch = os.environ.get(ENV_LAUNCH, "none")
    if read_verdict(attempts, launch) is not None:
        return ExitCode.OK  # this launch is over: torchrun must not go on restarting it
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    _die_with_parent(signal.SIGTERM)
    rank = int(os.environ.get("RANK", "0"))
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    folder = attempts / "early" / f"{launch}-e{restart}-{socket.gethostname()}-{rank:05d}"
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    oom_before = _oom_kills()
    started_at_ns = time.time_ns()
    with (folder / "stdout.log").open("ab") as out, (folder / "stderr.log").open("ab") as err:
        parent = os.getpid()
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, ENV_EVIDENCE: str(folder)},
            preexec_fn=lambda: _in_child(parent),  # noqa: PLW1509 - this process has one thread
        )
    status, usage, hung_s = _mind(child.pid, handle, args.hang_s)
    code = os.waitstatus_to_exitcode(status)
    oom_after = _oom_kills()
    report = ExitReport(
        rank=rank,
        host=socket.gethostname(),
        pid=child.pid,
        exit_code=code if code >= 0 else None,
        signal=signal.Signals(-code).name if code < 0 else None,
        hung_s=hung_s,
        last_step=_last_step(handle),
        started_at_ns=started_at_ns,
        ended_at_ns=time.time_ns(),
        cpu_s=usage.ru_utime + usage.ru_stime,
        max_rss_mb=usage.ru_maxrss / 1024,
        oom_kills=oom_after - oom_before if min(oom_after, oom_before) >= 0 else -1,
    )
    where = Path(f"/proc/self/fd/{handle}").readlink()  # follows the folder under its attempt
    _report(where, handle, report)
    return _end_like(code)


def _mind(pid: int, handle: int, hang_s: float) -> tuple[int, resource.struct_rusage, float | None]:
    """Wait for the rank; pass signals on; end it when it hangs."""
    hung_s: float | None = None
    kill_at = 0.0
    watch = _Silence()
    while True:
        info = signal.sigtimedwait(WATCHED, TICK_S)
        done, status, usage = os.wait4(pid, os.WNOHANG)
        if done == pid:
            return status, usage, hung_s
        if info is not None and info.si_signo != signal.SIGCHLD:
            os.kill(pid, info.si_signo)
        if hung_s is None and hang_s > 0 and (silent := watch.seconds(handle)) is not None and silent > hang_s:
            hung_s = silent
            os.kill(pid, signal.SIGUSR1)
            kill_at = time.monotonic() + STACKS_S
        if hung_s is not None and time.monotonic() > kill_at:
            os.kill(pid, signal.SIGKILL)


class _Silence:
    """How long a rank has made no step, by this process's own clock: a step of the wall clock ends nobody."""

    def __init__(self) -> None:
        self._stamp: int | None = None
        self._since = 0.0

    def seconds(self, handle: int) -> float | None:
        """Seconds since the last step; None before the first one (start-up has torchrun's own deadline)."""
        try:
            seen = os.stat("heartbeat", dir_fd=handle)
        except OSError:
            return None
        if not seen.st_size:
            return None
        if seen.st_mtime_ns != self._stamp:
            self._stamp, self._since = seen.st_mtime_ns, time.monotonic()
        return time.monotonic() - self._since


def _last_step(handle: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        fd = os.open("heartbeat", os.O_RDONLY, dir_fd=handle)
        try:
            return int(os.read(fd, 64))
        finally:
            os.close(fd)
    return None


def _report(where: Path, handle: int, report: ExitReport) -> None:
    """`exit.json`, the attempt's outcome (rank 0 only) and torchrun's error file."""
    with contextlib.suppress(OSError):
        fd = os.open("exit.json", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644, dir_fd=handle)
        with os.fdopen(fd, "w") as out:
            out.write(records.dumps(report, indent=1))
    if report.exit_code == ExitCode.OK:
        return
    if report.rank == 0 and where.parent.name != "early":
        with contextlib.suppress(Exception):  # a full disk must not hide how the rank ended
            finish_meta(where.parent, AttemptOutcome.FAILED, ended_at_ns=report.ended_at_ns, last_step=report.last_step)
    error_file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if error_file:
        said = f"rank {report.rank} ended by {report.signal or f'exit code {report.exit_code}'}; see {where}"
        seconds = int(report.ended_at_ns / 1e9)
        message = {"message": said, "extraInfo": {"py_callstack": said, "timestamp": str(seconds)}}
        with contextlib.suppress(OSError):
            Path(error_file).write_text(json.dumps({"message": message}))


def _end_like(code: int) -> int:
    if code >= 0:
        return code
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the rank's core is enough
    signum = signal.Signals(-code)
    if signum not in {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(signum, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signum})
    os.kill(os.getpid(), signum)
    return 128 - code  # only where the signal's default is to be ignored


def _in_child(parent: int) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, WATCHED)
    _die_with_parent(signal.SIGKILL, parent)


def _die_with_parent(signum: signal.Signals, parent: int | None = None) -> None:
    """Have the kernel send `signum` when the parent dies (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if parent is not None and os.getppid() != parent:
        os.kill(os.getpid(), signum)


def _oom_kills() -> int:
    """`oom_kill` of this process's control group (cgroup v2); -1 where it cannot be read."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        line = next(ln for ln in Path("/proc/self/cgroup").read_text().splitlines() if ln.startswith("0::"))
        events = Path("/sys/fs/cgroup") / line[3:].lstrip("/") / "memory.events"
        return int(next(ln.split()[1] for ln in events.read_text().splitlines() if ln.startswith("oom_kill ")))
    return -1


if __name__ == "__main__":
    sys.exit(main())
