"""What one rank leaves behind: output, stacks, flight recorder, error, exit report. Standard library only.

The minder (`kinemill.training.launcher.minder`) opens the folder before the rank's process exists and writes the exit
report after it is gone, so SIGKILL and SIGSEGV leave evidence too. The rank moves the folder under its attempt once it
knows the number; open files and the minder's directory handle follow a rename.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kinemill import records
from kinemill.errors import ContractError, KinemillError
from kinemill.training.checkpoint.folder import write_atomically

__all__ = ["ENV_EVIDENCE", "ENV_LAUNCH", "Evidence", "ExitReport", "Verdict", "read_verdict", "write_verdict"]

ENV_EVIDENCE: Final = "KINEMILL_EVIDENCE"
"""Folder that the minder opened for this rank."""
ENV_LAUNCH: Final = "KINEMILL_LAUNCH"
"""Id of the launch (one `kinemill train run`)."""


@dataclass(frozen=True, slots=True)
class ExitReport:
    """`exit.json`: how a rank's process ended, as its parent saw it."""

    rank: int
    host: str
    pid: int
    exit_code: int | None
    """None where a signal ended it."""
    signal: str | None
    hung_s: float | None
    """Seconds without a heartbeat, where the minder ended it for that."""
    last_step: int | None
    started_at_ns: int
    ended_at_ns: int
    cpu_s: float
    max_rss_mb: float
    oom_kills: int
    """Processes that the kernel killed for memory in this control group meanwhile; -1 where it cannot be read."""
    version: int = 1


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rank's word that this launch is over: no in-place restart, exit with this code."""

    exit_code: int
    message: str
    version: int = 1


def verdict_path(attempts: Path, launch: str) -> Path:
    """Beside the attempts, where every node of a launch sees it."""
    return attempts / f"verdict-{launch}.json"


def write_verdict(attempts: Path, launch: str, verdict: Verdict) -> None:
    """Pronounce; the first verdict of a launch stands."""
    path = verdict_path(attempts, launch)
    if not path.exists():
        write_atomically(path, records.dumps(verdict).encode())


def read_verdict(attempts: Path, launch: str) -> Verdict | None:
    """The launch's verdict, if there is one."""
    path = verdict_path(attempts, launch)
    try:
        return records.loads(Verdict, path.read_bytes(), where=str(path))
    except (FileNotFoundError, ContractError):
        return None


class Evidence:
    """The rank's own side of its evidence folder.

    Args:
        folder: Where to write; made if it is not there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._heartbeat = os.open(folder / "heartbeat", os.O_WRONLY | os.O_CREAT, 0o644)
        self._stacks: IO[str] | None = None
        self._woken: tuple[int, int] | None = None
        self._dump: Callable[[], bytes] | None = None
        self.step: int | None = None

    @classmethod
    def begin(cls, fallback: Path) -> Evidence:
        """The folder that the minder opened, else `fallback` (a rank started by hand)."""
        return cls(Path(os.environ.get(ENV_EVIDENCE) or fallback))

    def enable(self) -> None:
        """Stacks of all threads on a fatal signal and on SIGUSR1; with `dump_flight`, the flight recorder too."""
        self._stacks = (self.folder / "stacks.txt").open("a")
        faulthandler.enable(self._stacks, all_threads=True)
        # The Python handler does nothing: it is there so that the signal's number reaches the wake-up pipe, whose
        # reader is a thread that works while the main one hangs inside a collective.
        signal.signal(signal.SIGUSR1, lambda _signum, _frame: None)
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        self._woken = (reader, writer)
        faulthandler.register(signal.SIGUSR1, self._stacks, all_threads=True, chain=True)
        threading.Thread(target=self._listen, args=(reader,), name="evidence", daemon=True).start()

    def dump_flight_with(self, dump: Callable[[], bytes]) -> None:
        """How to read the flight recorder; given by the job, since this module knows no torch."""
        self._dump = dump

    def dump_flight(self) -> None:
        """Write `flight.json`; the recorder being empty or broken is no error here."""
        if self._dump is None:
            return
        try:
            data = self._dump()
        except Exception as exc:  # noqa: BLE001 - evidence must not hide the fault it is about
            data = json.dumps({"error": f"flight recorder: {type(exc).__name__}: {exc}"}).encode()
        with contextlib.suppress(OSError):
            (self.folder / "flight.json").write_bytes(data)

    def move_to(self, attempt: Path, rank: int) -> None:
        """Put the folder under the attempt it belongs to."""
        target = attempt / f"rank-{rank:05d}"
        self.folder.rename(target)
        self.folder = target

    def beat(self, step: int) -> None:
        """Say that `step` is done; the minder's hang watch looks at this file's time."""
        self.step = step
        os.pwrite(self._heartbeat, b"%-20d\n" % step, 0)

    def failed(self, exc: BaseException) -> None:
        """Write `error.json` with the traceback, and the flight recorder."""
        report = {
            "rank": int(os.environ.get("RANK", "0")),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "time_ns": time.time_ns(),
            "step": self.step,
            "type": type(exc).__name__,
            "message": str(exc),
            "transient": exc.transient if isinstance(exc, KinemillError) else None,
            "traceback": "".join(traceback.format_exception(exc)),
        }
        with contextlib.suppress(OSError):
            (self.folder / "error.json").write_text(json.dumps(report, indent=1))
        self.dump_flight()

    def close(self) -> None:
        """Undo `enable`."""
        if self._stacks is not None:
            faulthandler.unregister(signal.SIGUSR1)
            faulthandler.disable()
            signal.set_wakeup_fd(-1)
            self._stacks.close()
            self._stacks = None
        if self._woken is not None:
            os.close(self._woken[1])  # ends the listening thread
            self._woken = None
        os.close(self._heartbeat)

    def _listen(self, reader: int) -> None:
        while woken := os.read(reader, 64):
            if signal.SIGUSR1 in woken:
                self.dump_flight()
                print("SIGUSR1: stacks in stacks.txt, collectives in flight.json", file=sys.stderr, flush=True)
        os.close(reader)
