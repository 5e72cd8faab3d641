"""One operator at a time for one cluster.

The lock is the kernel's (flock) on a file that all operators of this machine share, so it is gone the moment its holder
dies, however it dies. What the file says is for people: who holds it. It is named after what the inventory connects to,
not after the inventory's path, so that two checkouts of it exclude each other too.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import getpass
import hashlib
import json
import os
import platform
import shutil
import stat
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from kinemill.errors import EnvironmentFault, UnavailableError

__all__ = ["DeployLock", "Holder", "lock_name", "operator"]

_TRIES = 20
_OUTLIVE_S = 60.0
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a lock.

    Attributes:
        user: The person, as far as the machine knows.
        host: The machine.
        pid: The process.
        since: ISO 8601, UTC.
        work: Its folder for what must not be kept; whoever takes the lock over removes it.
    """

    user: str
    host: str
    pid: int
    since: str
    work: str = ""

    def __str__(self) -> str:
        """In words."""
        return f"{self.user} on {self.host}, process {self.pid}, since {self.since}"


def operator() -> str:
    """The person at the keyboard, also behind sudo."""
    try:
        return os.environ.get("SUDO_USER") or getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def lock_name(inventory: str, targets: Iterable[str]) -> str:
    """The lock's file name.

    Args:
        inventory: The inventory's name.
        targets: What it connects to.
    """
    digest = hashlib.sha256("\n".join(sorted(set(targets))).encode()).hexdigest()[:12]
    word = "".join(c if c.isalnum() or c in "-_" else "-" for c in inventory)[:40]
    return f"kinemill-deploy-{word}-{digest}.lock"


class DeployLock:
    """The lock, held from construction to `release`.

    Args:
        folder: Where locks lie.
        name: From `lock_name`.
        work: See `Holder`.
        now: The time to write down.

    Attributes:
        took_over: The dead holder whose lock this was; None where the last one left in order.

    Raises:
        UnavailableError: Somebody living holds it; the message says who.
        EnvironmentFault: The folder or file cannot be used.
    """

    def __init__(self, folder: Path, name: str, *, work: Path | None, now: datetime.datetime) -> None:
        self.path = folder / name
        self.took_over: Holder | None = None
        self._fd = self._take()
        self._ours = os.fstat(self._fd).st_uid == os.geteuid()
        before = _read(self._fd)
        if before is not None:
            self.took_over = before
            try:
                _outlive(before.work)
            except UnavailableError:
                os.close(self._fd)
                raise
            _remove_work(before.work)
        since = now.astimezone(datetime.UTC).isoformat(timespec="seconds")
        self._say(Holder(operator(), platform.node(), os.getpid(), since, str(work or "")))

    def release(self) -> None:
        """Give it up; the file goes with it."""
        if self._fd < 0:
            return
        # First the file, then the lock: whoever opened this file meanwhile sees that it is no longer the one.
        with contextlib.suppress(OSError):
            self.path.unlink()
        os.close(self._fd)
        self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.release()

    def _take(self) -> int:
        for _ in range(_TRIES):
            fd = _open(self.path)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = _living_holder(fd)
                os.close(fd)
                raise UnavailableError(
                    f"a deploy of this cluster is running: {holder}; wait for it, or stop it there with Ctrl-C"
                ) from error
            try:
                if self.path.lstat().st_ino == os.fstat(fd).st_ino:
                    return fd
            except FileNotFoundError:
                pass
            os.close(fd)  # its holder left between our open and our lock, and took the file along
        raise UnavailableError(f"{self.path} changes hands too quickly; run again")

    def _say(self, holder: Holder) -> None:
        if not self._ours and os.geteuid() != 0:
            return  # another account's file, left by a dead run; the kernel still tells who holds it
        text = json.dumps(asdict(holder)).encode()
        with contextlib.suppress(OSError):
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, text, 0)


def _open(path: Path) -> int:
    """Open or make the file; links are not followed, and others may read it: they must be able to see the holder."""
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(fd, 0o644)
            return fd
        try:
            fd = os.open(path, flags | os.O_RDWR)
        except PermissionError:
            fd = os.open(path, flags | os.O_RDONLY)
    except FileNotFoundError:
        return _open(path)
    except OSError as error:
        raise EnvironmentFault(
            f"{path}: cannot lock ({error.strerror}); set deploy.lock_dir to a folder that can"
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise EnvironmentFault(f"{path} is no plain file; somebody put it there: look at it and remove it")
    return fd


def _read(fd: int) -> Holder | None:
    try:
        found = json.loads(os.pread(fd, _LONGEST, 0))
        return Holder(
            str(found["user"]), str(found["host"]), int(found["pid"]), str(found["since"]), str(found.get("work", ""))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _living_holder(fd: int) -> str:
    """Who holds the lock, by the file's own words where they name the process that the kernel names."""
    pid = _kernel_holder(fd)
    said = _read(fd)
    if said is not None and pid in (0, said.pid):
        return str(said)
    if not pid:
        return "a process that the kernel does not name"
    try:
        owner = f"uid {Path(f'/proc/{pid}').stat().st_uid}"
    except OSError:
        owner = "somebody"
    return f"{owner} on {platform.node()}, process {pid}"


def _kernel_holder(fd: int) -> int:
    """The process that holds a flock on this file, from /proc/locks; 0 where it does not say."""
    about = os.fstat(fd)
    place = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}:{about.st_ino}"
    try:
        for line in Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines():
            words = line.split()
            if len(words) >= 6 and words[1] == "FLOCK" and words[5] == place:
                return max(0, int(words[4]))
    except (OSError, ValueError):
        pass
    return 0


def _outlive(work: str) -> None:
    """Wait until what a killed run started has ended; it does so by itself within seconds."""
    end_s = time.monotonic() + _OUTLIVE_S
    for record in Path(work or "/nonexistent").glob("*/pid"):
        try:
            pid = int(record.read_text(encoding="ascii"))
            while str(record).encode() in Path(f"/proc/{pid}/cmdline").read_bytes():
                if time.monotonic() > end_s:
                    raise UnavailableError(f"a killed run's Ansible (process {pid}) still works; wait, or end it")
                time.sleep(0.2)
        except (OSError, ValueError):
            continue


def _remove_work(work: str) -> None:
    """Remove what a killed run left in memory; only a folder of ours, by the name we give such folders."""
    path = Path(work)
    with contextlib.suppress(OSError):
        named_so = path.name.startswith("kinemill-deploy-") and path.is_absolute()
        if named_so and not path.is_symlink() and path.stat().st_uid == os.geteuid():
            shutil.rmtree(path, ignore_errors=True)
