"""A server's private folder, its single owner, and the sweep of what a dead owner left running."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from kinemill.errors import ConflictError, EnvironmentFault
from kinemill.process.account import Account

__all__ = ["OwnedFolder", "private_folder", "socket_folder", "state_root"]

_SOCKET_PATH_MAX = 100
"""sun_path holds 108 bytes with its end; a few are left for the server's own suffix."""


def state_root() -> Path:
    """Where embedded servers live unless told otherwise.

    `/var/lib/kinemill/servers` for root, else `$XDG_STATE_HOME` or `~/.local/state` + `/kinemill/servers`.
    """
    if os.geteuid() == 0:
        return Path("/var/lib/kinemill/servers")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(base) / "kinemill" / "servers"


def private_folder(path: Path, *, mode: int = 0o700, account: Account | None = None) -> Path:
    """Make `path` if need be, and see that nobody else can write in it.

    Args:
        path: Its parents are made too.
        mode: 0o700, or 0o711 where a server under another account must pass through.
        account: Whose it shall be; None means ours.

    Returns:
        The absolute path.

    Raises:
        EnvironmentFault: It is a link, no folder, or somebody else's.
    """
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    fd = _open_folder(path)
    try:
        found = os.fstat(fd)
        if found.st_uid not in (os.geteuid(), account.uid if account else os.geteuid()):
            raise EnvironmentFault(f"{path} belongs to uid {found.st_uid}, not to us: choose another folder")
        if stat.S_IMODE(found.st_mode) != mode:
            os.fchmod(fd, mode)
        if account is not None and found.st_uid != account.uid:
            os.fchown(fd, account.uid, account.gid)
    finally:
        os.close(fd)
    return path


def _open_folder(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as exc:
        raise EnvironmentFault(f"{path}: not a folder of ours ({exc.strerror}); links are not followed") from exc


def socket_folder(folder: Path, longest_name: str) -> Path:
    """`folder`, or a short name for a `private_folder` if a socket `folder/longest_name` would have too long a path."""
    if len(os.fsencode(folder / longest_name)) <= _SOCKET_PATH_MAX:
        return folder
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"kinemill-{os.geteuid()}-{digest}"


class OwnedFolder:
    """A private folder with one living owner.

    The lock is the kernel's (flock): it is gone the moment its owner dies, however it dies, and children
    do not inherit it. Taking the folder first ends every process that an earlier owner left in it.

    Args:
        path: The folder; None makes one under the temporary directory that `release` removes again.
        name: Word in the temporary folder's name.
        mode: As for `private_folder`.

    Raises:
        ConflictError: It has a living owner; the message names its pid.
    """

    def __init__(self, path: Path | None, *, name: str = "server", mode: int = 0o700) -> None:
        self.temporary = path is None
        if path is None:
            _drop_dead_temporaries()
            path = Path(tempfile.mkdtemp(prefix=f"kinemill-{name}-"))
        self.path = private_folder(path, mode=mode)
        self._lock_fd = self._lock()
        # The child module needs this one's lock semantics, not the other way round.
        from kinemill.process.child import sweep

        sweep(self.path)

    def _lock(self) -> int:
        lock = self.path / "owner.lock"
        fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as exc:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise ConflictError(f"{self.path} is in use by process {holder}; stop it or choose another folder") from exc
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return fd

    def release(self) -> None:
        """Give the folder up; a temporary one is removed. Its children must be stopped before."""
        if self._lock_fd < 0:
            return
        if self.temporary:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock_fd)
        self._lock_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.release()


def _drop_dead_temporaries() -> None:
    """Remove temporary folders whose owner was killed before it could."""
    from kinemill.process.child import sweep

    for old in Path(tempfile.gettempdir()).glob("kinemill-*-*/owner.lock"):
        try:
            fd = os.open(old, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            folder = old.parent
            if folder.is_symlink() or folder.stat().st_uid != os.geteuid() or os.fstat(fd).st_uid != os.geteuid():
                continue
            if os.fstat(fd).st_size == 0:
                continue  # its owner is between making the lock and taking it
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            sweep(folder)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue
        finally:
            os.close(fd)
