"""A server process: started, watched until ready, stopped, and found again after its owner's death."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinemill.errors import DeadlineError, UnavailableError, UsageError
from kinemill.process.account import Account

__all__ = ["Child", "ProcessId", "sweep"]

_log = logging.getLogger(__name__)
_LOG_MAX_BYTES = 8 << 20
_TAIL_BYTES = 4096
_POLL_S = 0.02
_KILLED_S = 60.0
"""For a killed process to be gone: on a busy machine it dies when its turn comes."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process that cannot be mistaken for another: its pid, when it started, and in which boot."""

    pid: int
    start_ticks: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessId | None:
        """The living process `pid`, or None. A zombie does not live."""
        try:
            text = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        fields = text.rsplit(")", 1)[1].split()
        if fields[0] in "ZX":
            return None
        return cls(pid, int(fields[19]), boot_id())

    def alive(self) -> bool:
        """True while exactly this process lives."""
        return ProcessId.of(self.pid) == self


def boot_id() -> str:
    """This boot's random id; pids and start times mean nothing in another boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


# ---- starting


class _Spawner:
    """One thread that starts all children of this process.

    The kernel's parent-death signal is sent when the *thread* that forked dies, so a child started from a
    short-lived thread would be killed in the middle of its work. This thread lives as long as the process.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._orders: queue.SimpleQueue[tuple[dict[str, Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="kinemill-spawn", daemon=True).start()

    def _run(self) -> None:
        while True:
            order, answer = self._orders.get()
            try:
                answer.put(subprocess.Popen(**order))
            except Exception as exc:  # noqa: BLE001 - handed to the caller, who raises it
                answer.put(exc)

    def spawn(self, **order: Any) -> subprocess.Popen[bytes]:
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._orders.put((order, answer))
        result = answer.get()
        if isinstance(result, Exception):
            raise result
        assert isinstance(result, subprocess.Popen)  # noqa: S101 - for the type checker
        return result


_spawner: _Spawner | None = None
_spawner_lock = threading.Lock()


def _the_spawner() -> _Spawner:
    global _spawner  # noqa: PLW0603 - one a process, by nature
    with _spawner_lock:
        if _spawner is None or _spawner.pid != os.getpid():
            _spawner = _Spawner()
        return _spawner


class Child:
    """One server process in its own process group.

    Args:
        folder: Its owned folder: the record `<name>.pid.json` and the log `<name>.log` lie there.
        name: One word.
        argv: Absolute program and arguments; nothing secret (anybody can read a command line).
        env: The whole environment.
        cwd: Where it runs: `folder`, or one of the server's own elsewhere. Leftovers are recognised by it.
        account: Run as this user; None means as ourselves.
        stop_signal: What asks it to end in good order.
        die_with_parent: The kernel sends it `stop_signal` when this process dies, however it dies.

    Raises:
        UsageError: `cwd` lies above `folder`, so others may work there.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        account: Account | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        die_with_parent: bool = True,
    ) -> None:
        if cwd is not None and cwd.resolve() in folder.resolve().parents:
            raise UsageError(f"{cwd} is not {name}'s own: give it a folder that nobody else works in")
        self.folder = folder
        self.name = name
        self.log = folder / f"{name}.log"
        self._argv = list(argv)
        self._env = dict(env)
        self._cwd = cwd or folder
        self._account = account
        self._stop_signal = stop_signal
        self._die_with_parent = die_with_parent
        self._popen: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """None before `start` and after `stop`."""
        return None if self._popen is None else self._popen.pid

    @property
    def running(self) -> bool:
        """True while the process lives."""
        return self._popen is not None and self._popen.poll() is None

    def start(self, ready: Callable[[], bool], *, timeout_s: float = 60.0, every_s: float = 0.05) -> None:
        """Start it and return when `ready` says so.

        Args:
            ready: Asked every `every_s`; False means not yet. It may raise UnavailableError, meaning the same.
            timeout_s: On the monotonic clock.
            every_s: Between two questions.

        Raises:
            UnavailableError: It ended before it was ready; the message ends with its log's last lines.
            DeadlineError: It was not ready in time; it is stopped.
        """
        self._spawn()
        deadline = time.monotonic() + timeout_s
        while True:
            if not self.running:
                code = self._popen.returncode if self._popen else None
                self._forget()
                raise UnavailableError(
                    f"{self.name} ended with status {code} before it was ready; {self.log}:\n{self.tail()}"
                )
            with contextlib.suppress(UnavailableError):
                if ready():
                    return
            if time.monotonic() > deadline:
                tail = self.tail()
                self.stop(grace_s=5)
                raise DeadlineError(f"{self.name} was not ready after {timeout_s:g} s; {self.log}:\n{tail}")
            time.sleep(every_s)

    def _spawn(self) -> None:
        if self.running:
            raise UnavailableError(f"{self.name} in {self.folder} runs already")
        if self.log.exists() and self.log.stat().st_size > _LOG_MAX_BYTES:
            self.log.replace(self.log.with_suffix(".log.1"))
        order = {
            "record": str(self.folder / f"{self.name}.pid.json"),
            "boot_id": boot_id(),
            "exe": str(Path(self._argv[0]).resolve()),
            "cwd": str(self._cwd.resolve()),
            "uid": self._account.uid if self._account else None,
            "gid": self._account.gid if self._account else None,
            "death_signal": int(self._stop_signal) if self._die_with_parent else 0,
            "parent": os.getpid(),
        }
        shim = Path(__file__).with_name("_spawn.py")
        log_fd = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            self._popen = _the_spawner().spawn(
                args=[sys.executable, "-I", "-S", "-B", str(shim), json.dumps(order), *self._argv],
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log_fd,
                stderr=log_fd,
                start_new_session=True,
            )
        finally:
            os.close(log_fd)

    def tail(self) -> str:
        """The log's last lines."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                lines = file.read().decode("utf-8", "replace").splitlines()
        except OSError:
            return "(no log)"
        return "\n".join(lines[-15:]) or "(empty)"

    def stop(self, *, grace_s: float = 20.0, how: signal.Signals | None = None) -> None:
        """Ask it to end, by `how` or its own stop signal, wait, then kill its group. Nothing if it does not run."""
        if self._popen is None:
            return
        pid = self._popen.pid
        if self.running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, how or self._stop_signal)
            try:
                self._popen.wait(grace_s)
            except subprocess.TimeoutExpired:
                _log.warning("%s (pid %d) did not end within %g s; killing its group", self.name, pid, grace_s)
        self.kill()

    def kill(self) -> None:
        """SIGKILL to the group, as the kernel's out-of-memory killer would do to it."""
        if self._popen is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._forget()

    def _forget(self) -> None:
        self._popen = None
        # Whatever left the group (Postgres' own children do) still runs in the folder.
        _end_leftovers(self.folder / f"{self.name}.pid.json")


# ---- sweeping


def sweep(folder: Path, *, grace_s: float = 5.0) -> int:
    """End all processes that the records in `folder` name and that still live; the caller owns the folder.

    Returns:
        How many were found.
    """
    return sum(_end_leftovers(record, grace_s=grace_s) for record in folder.glob("*.pid.json"))


def _end_leftovers(record: Path, *, grace_s: float = 5.0) -> int:
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        leader = ProcessId(int(known["pid"]), int(known["start_ticks"]), str(known["boot_id"]))
        exe, cwd = str(known["exe"]), str(known["cwd"])
    except FileNotFoundError:
        return 0
    except (OSError, ValueError, KeyError, TypeError):
        record.unlink(missing_ok=True)  # torn record: the shim had not executed the server yet
        return 0
    found = _leftovers(leader, exe, cwd) if leader.boot_id == boot_id() else []
    count = len(found)
    if found:
        _log.warning("%s: ending %d processes that its last owner left", record.parent, len(found))
        if leader in found:
            _signal(leader, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        while _leftovers(leader, exe, cwd) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        deadline = time.monotonic() + _KILLED_S
        while left := _leftovers(leader, exe, cwd):
            for process in left:
                _signal(process, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise UnavailableError(f"{record}: process {left[0].pid} survives SIGKILL; is its disk hanging?")
            time.sleep(_POLL_S)
    record.unlink(missing_ok=True)
    return count


def _leftovers(leader: ProcessId, exe: str, cwd: str) -> list[ProcessId]:
    """The leader itself, and every process with its program that works in its folder."""
    found = [leader] if leader.alive() else []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            at = str(Path(f"/proc/{entry.name}/cwd").readlink())
            program = str(Path(f"/proc/{entry.name}/exe").readlink()).removesuffix(" (deleted)")
        except OSError:
            continue
        if program == exe and (at == cwd or at.startswith(cwd + "/")):
            process = ProcessId.of(int(entry.name))
            if process is not None and process != leader:
                found.append(process)
    return found


def _signal(process: ProcessId, number: signal.Signals) -> None:
    """Send `number` to exactly this process: through a pidfd, so that a reused pid is never hit."""
    try:
        fd = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        if process.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                signal.pidfd_send_signal(fd, number)
    finally:
        os.close(fd)
