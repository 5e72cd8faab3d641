"""The anchor: one sleeping process that holds a sandbox's mount and network namespaces and its id's lock.

No mount, interface or namespace of a sandbox has a name outside the anchor's namespaces, so they are gone when the
last process in the sandbox's cgroup is. A sandbox whose lock is free has no anchor: it is a leftover.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from kinemill.control.sandbox.host import run, state_root
from kinemill.control.sandbox.names import BRIDGE, GATEWAY, IDS, PREFIX_BITS, Places
from kinemill.errors import ConflictError, DeadlineError, ExternalError, StateError, UnavailableError

__all__ = [
    "alive",
    "allocate",
    "anchor_pid",
    "destroy",
    "detach",
    "inside",
    "leftovers",
    "locked",
    "pids",
    "placed",
    "read_record",
    "start",
    "tcp",
    "until",
]

T = TypeVar("T")

_CLONE_NEWNET = 0x40000000
_KILL_DEADLINE_S = 60
_START_DEADLINE_S = 120


def until(what: str, ready: Callable[[], T | None], *, deadline_s: float, every_s: float = 0.05) -> T:
    """Ask again until the answer is true.

    Args:
        what: What is waited for, for the message.
        ready: The question.
        deadline_s: When to give up.
        every_s: How long to rest between two tries.

    Returns:
        The first true answer.

    Raises:
        DeadlineError: There was none in time.
    """
    end = time.monotonic() + deadline_s
    while True:
        answer = ready()
        if answer:
            return answer
        if time.monotonic() > end:
            raise DeadlineError(f"{what}: not after {deadline_s:g} s")
        time.sleep(every_s)


@contextlib.contextmanager
def locked(path: Path, *, deadline_s: float = 300) -> Iterator[None]:
    """Hold a lock file.

    Raises:
        ConflictError: Somebody else held it for too long.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            until("lock", lambda: _try_lock(handle.fileno()), deadline_s=deadline_s)
        except DeadlineError as error:
            raise ConflictError(f"{path}: another command has been at work for {deadline_s:g} s") from error
        yield


def _try_lock(fd: int) -> bool:
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def allocate() -> tuple[Places, int]:
    """Take a free id.

    Returns:
        Its places, and the descriptor that holds its lock; hand it to `start`.

    Raises:
        ConflictError: All ids are taken.
    """
    for number in IDS:
        places = Places(number)
        places.lock.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        fd = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if _try_lock(fd):
            return places, fd
        os.close(fd)
    raise ConflictError(f"{len(IDS)} sandboxes are up already; take one down: kinemill sandbox status")


def leftovers() -> list[Places]:
    """Sandboxes without an anchor: what a killed command or a reboot of this machine left."""
    found: list[Places] = []
    root = state_root()
    for path in sorted(root.iterdir()) if root.is_dir() else []:
        if path.name.isdigit() and int(path.name) in IDS:
            places = Places(int(path.name))
            if not _is_held(places):
                found.append(places)
    return found


def _is_held(places: Places) -> bool:
    try:
        fd = os.open(places.lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _try_lock(fd)
    finally:
        os.close(fd)


def placed(cgroup: Path, command: Sequence[str]) -> list[str]:
    """The command, changed so that it first moves itself into a cgroup."""
    return ["/bin/sh", "-c", 'echo $$ >"$1" && shift && exec "$@"', "sh", str(cgroup / "cgroup.procs"), *command]


def detach(
    command: Sequence[str],
    *,
    cgroup: Path,
    pid_file: Path,
    log: Path,
    env: Mapping[str, str],
    lock_fd: int | None = None,
) -> int:
    """Start a program that outlives this one, in a session and a cgroup of its own.

    Args:
        command: The program and its arguments.
        cgroup: Where it runs.
        pid_file: Where its process id is written before it starts.
        log: Where its output goes.
        env: Its environment.
        lock_fd: A descriptor that it inherits.

    Returns:
        Its process id.

    Raises:
        ExternalError: It could not be started.
    """
    pid_file.unlink(missing_ok=True)
    script = 'echo $$ >"$1" && echo $$ >"$2.new" && mv "$2.new" "$2" && shift 2 && exec "$@"'
    start = ["/usr/bin/setsid", "--fork", "/bin/sh", "-c", script, "sh", str(cgroup / "cgroup.procs"), str(pid_file)]
    with log.open("ab") as output:
        done = subprocess.run(
            [*start, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env=dict(env),
            pass_fds=[] if lock_fd is None else [lock_fd],
            check=False,
            timeout=_START_DEADLINE_S,
        )
    if done.returncode != 0:
        raise ExternalError(f"{command[0]} could not be started (setsid: {done.returncode})")
    until(f"start of {command[0]}", pid_file.is_file, deadline_s=_START_DEADLINE_S, every_s=0.005)
    return int(pid_file.read_text())


def alive(pid: int) -> bool:
    """True while a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def start(places: Places, lock_fd: int) -> int:
    """Start the anchor with a bridge in its network namespace.

    Args:
        places: The sandbox's places; its home is made here.
        lock_fd: From `allocate`; the anchor inherits it.

    Returns:
        The anchor's process id.
    """
    places.home.mkdir(parents=True, exist_ok=True, mode=0o700)
    places.cgroup.mkdir(parents=True, exist_ok=True)
    command = ["/usr/bin/unshare", "--mount", "--net", "--propagation=private", "/bin/sleep", "infinity"]
    log = places.home / "anchor.log"
    pid_file = places.home / "anchor.pid"
    env = {"PATH": "/usr/bin:/bin"}
    pid = detach(command, cgroup=places.cgroup, pid_file=pid_file, log=log, env=env, lock_fd=lock_fd)
    os.close(lock_fd)
    until("anchor", lambda: _is_anchor(pid) or not alive(pid), deadline_s=_START_DEADLINE_S, every_s=0.005)
    if not alive(pid):
        raise ExternalError(f"no namespaces: may this container make them? {log.read_text().strip()[-500:]}")
    script = f"""
    mkdir -p /run/systemd/nspawn
    mount -t tmpfs -o mode=755 kinemill /run/systemd/nspawn
    ip link set lo up
    ip link add {BRIDGE} type bridge stp_state 0 forward_delay 0
    ip addr add {GATEWAY}/{PREFIX_BITS} dev {BRIDGE}
    ip link set {BRIDGE} up
    """
    inside(places, ["/bin/sh", "-euc", script])
    return pid


def _is_anchor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "sleep"
    except OSError:
        return False


def anchor_pid(places: Places) -> int:
    """The anchor's process id.

    Raises:
        StateError: It does not live.
    """
    try:
        pid = int((places.home / "anchor.pid").read_text())
    except (OSError, ValueError):
        pid = 0
    if not pid or not _is_anchor(pid) or pid not in pids(places):
        raise StateError(f"sandbox {places.id}: its anchor is gone; take it down: kinemill sandbox down")
    return pid


def inside(places: Places, command: Sequence[str], *, deadline_s: float = 60, check: bool = True) -> Any:
    """Run a program in the sandbox's mount and network namespaces; see `host.run`."""
    entered = ["nsenter", "-t", str(anchor_pid(places)), "-m", "-n", "--", *command]
    return run(placed(places.cgroup, entered), deadline_s=deadline_s, check=check)


def tcp(places: Places, address: str, port: int, *, deadline_s: float) -> socket.socket:
    """Connect to an address inside the sandbox's network; the calling thread stays where it is.

    Raises:
        UnavailableError: Nobody answers there.
    """
    fd = os.open(f"/proc/{anchor_pid(places)}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def connect() -> None:
        try:
            if ctypes.CDLL(None, use_errno=True).setns(fd, _CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.create_connection((address, port), timeout=deadline_s))
        except OSError as error:
            failed.append(error)

    try:
        thread = threading.Thread(target=connect)
        thread.start()
        thread.join()
    finally:
        os.close(fd)
    if failed:
        raise UnavailableError(f"{address}:{port} in sandbox {places.id}: {failed[0]}") from failed[0]
    return made[0]


def pids(places: Places) -> set[int]:
    """Every process of the sandbox."""
    found: set[int] = set()
    for folder, _, _ in os.walk(places.cgroup):  # groups come and go meanwhile; os.walk does not mind
        with contextlib.suppress(OSError):
            found |= {int(word) for word in Path(folder, "cgroup.procs").read_text().split()}
    return found


def destroy(places: Places) -> None:
    """Kill everything of a sandbox and remove every trace; harmless where nothing is left.

    Raises:
        DeadlineError: A process does not die: it hangs in the kernel. Its id is named.
    """
    if places.cgroup.is_dir():
        # Not cgroup.kill alone: processes may be waiting in a freezer or moving between groups.
        with contextlib.suppress(OSError):
            (places.cgroup / "cgroup.kill").write_text("1")

        def dead() -> bool:
            for pid in pids(places):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            return not pids(places)

        try:
            until("end of processes", dead, deadline_s=_KILL_DEADLINE_S)
        except DeadlineError as error:
            raise DeadlineError(f"sandbox {places.id}: processes {sorted(pids(places))} do not die") from error
    for root in (places.cgroup, places.twin_cgroup):
        _remove_cgroups(root)
    if places.home.is_dir():
        _unmount_below(places.home)
        until(f"removal of {places.home}", lambda: _removed(places.home), deadline_s=_KILL_DEADLINE_S)
    _forget_names(places)


def _removed(home: Path) -> bool:
    """Whether a folder is gone; a tool of a command that was killed may still write into it for a moment."""
    try:
        shutil.rmtree(home, onerror=_unless_gone)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
    return not home.exists()


def _unless_gone(function: object, path: str, caught: tuple[type[BaseException], BaseException, object]) -> None:
    """Two who clear the same leftovers away meet: what the other one removed is removed."""
    del function, path
    if not isinstance(caught[1], FileNotFoundError):
        raise caught[1]


def _remove_cgroups(root: Path) -> None:
    if not root.is_dir():
        return
    for folder, _, _ in os.walk(root, topdown=False):
        _rmdir(Path(folder))
    with contextlib.suppress(OSError):
        root.parent.rmdir()


def _rmdir(path: Path) -> None:
    def gone() -> bool:
        try:
            path.rmdir()
        except FileNotFoundError:
            return True
        except OSError:  # a killed process is still being reaped
            return False
        return True

    until(f"removal of {path}", gone, deadline_s=_KILL_DEADLINE_S)


def _unmount_below(home: Path) -> None:
    """Mounts live in the anchor's namespace only; an older or broken run must not make rmtree reach into one."""
    prefix = f"{home}/"
    for line in reversed(Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()):
        place = line.split(" ")[1]
        if place.startswith(prefix):
            run(["umount", "--lazy", place])


def _forget_names(places: Places) -> None:
    folder = state_root() / "by-name"
    for link in folder.iterdir() if folder.is_dir() else []:
        if link.is_symlink() and link.readlink() == Path("..") / str(places.id):
            link.unlink()


def read_record(places: Places) -> dict[str, Any]:
    """The sandbox's record; empty where a killed run left none."""
    try:
        record = json.loads(places.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
