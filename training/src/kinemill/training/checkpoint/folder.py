"""Where a run keeps its checkpoints and attempts: today a POSIX folder, behind a seam for an object-store prefix.

Layout::

    <run>/checkpoints/latest.json             the pointer: published checkpoints, newest first
    <run>/checkpoints/step-00000040-a000002/  one checkpoint, written by attempt 2
    <run>/attempts/000002/                    what attempt 2 left behind; see `kinemill.training.attempts`

A checkpoint exists once the pointer names it. A folder that the pointer does not name was torn by a kill and is
ignored, then swept. The pointer is replaced by write, fsync, rename and fsync of the folder, under a lock and only by
an attempt that is not older than the one that wrote it, so that a process which outlived its attempt publishes nothing.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kinemill import records
from kinemill.errors import ConfigError, ConflictError, ContractError, EnvironmentFault, KinemillError
from kinemill.store.files import fsync_folder

if TYPE_CHECKING:
    from torch.distributed.checkpoint.storage import StorageReader, StorageWriter

__all__ = ["Pointer", "PosixRunFolder", "RunFolder", "Saved", "open_run", "write_atomically"]

_STEP = re.compile(r"step-(?P<step>\d{8})-a(?P<attempt>\d{6})")
_ATTEMPT = re.compile(r"\d{6}")


@dataclass(frozen=True, slots=True)
class Saved:
    """One published checkpoint."""

    step: int
    name: str
    """Folder name under `checkpoints/`."""
    attempt: int
    world_size: int
    saved_at_ns: int
    files: dict[str, int] = field(default_factory=dict)
    """Size in bytes of every file in it, so that a file cut short later is noticed before it is loaded."""


@dataclass(frozen=True, slots=True)
class Pointer:
    """`checkpoints/latest.json`."""

    saved: tuple[Saved, ...]
    """Newest first."""
    version: int = 1


@runtime_checkable
class RunFolder(Protocol):
    """What a training run needs from the place it lives in.

    A POSIX folder claims by exclusive mkdir and publishes by rename; an object-store prefix claims by put-if-absent
    and publishes by put-if-match, after upload. Callers see no difference.
    """

    @property
    def url(self) -> str:
        """Path or URL, for messages."""
        ...

    def claim_attempt(self) -> int:
        """The next attempt number, claimed by exclusive create."""
        ...

    def attempts(self) -> list[int]:
        """All claimed attempt numbers, ascending."""
        ...

    def attempt_path(self, number: int) -> Path:
        """A local folder for the attempt's evidence."""
        ...

    def step_name(self, step: int, attempt: int) -> str:
        """The name under which `attempt` saves `step`; never used twice."""
        ...

    def writer(self, name: str) -> StorageWriter:
        """A DCP writer for the checkpoint `name`."""
        ...

    def reader(self, name: str) -> StorageReader:
        """A DCP reader for the checkpoint `name`."""
        ...

    def seal(self, name: str) -> dict[str, int]:
        """Make the written checkpoint durable; its files with their sizes in bytes."""
        ...

    def discard(self, name: str) -> None:
        """Remove a checkpoint that could not be written; no error where there is nothing."""
        ...

    def publish(self, saved: Saved, *, keep: int) -> Pointer:
        """Point at `saved`, keep the newest `keep`, remove older ones and torn ones of earlier attempts."""
        ...

    def pointer(self) -> Pointer | None:
        """What is published; None before the first."""
        ...

    def damage(self, saved: Saved) -> str | None:
        """What is wrong with a published checkpoint, or None."""
        ...


def open_run(where: str | Path) -> PosixRunFolder:
    """The run folder at `where`, created if it is not there.

    Raises:
        ConfigError: An object-store URL (no run lives there yet).
        EnvironmentFault: The folder cannot be made or written.
    """
    text = str(where)
    if "://" in text:
        raise ConfigError(f"run folder {text}: a run lives in a local or shared folder so far; give a path")
    return PosixRunFolder(Path(text))


class PosixRunFolder:
    """A run on a local disk or a shared file system.

    Args:
        root: The run's folder; created if it is not there.

    Raises:
        EnvironmentFault: It cannot be made or written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        with _explained(f"run folder {self.root}"):
            for sub in ("checkpoints", "attempts"):
                (self.root / sub).mkdir(parents=True, exist_ok=True)
            if not os.access(self.root / "attempts", os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    @property
    def url(self) -> str:
        """The path."""
        return str(self.root)

    # ---- attempts

    def claim_attempt(self) -> int:
        """The next number; two claimers never get the same one."""
        number = max(self.attempts(), default=0) + 1
        with _explained(f"run folder {self.root}"):
            while True:
                try:
                    self.attempt_path(number).mkdir()
                except FileExistsError:
                    number += 1
                    continue
                fsync_folder(self.root / "attempts")
                return number

    def attempts(self) -> list[int]:
        """All claimed numbers, ascending."""
        return sorted(int(p.name) for p in (self.root / "attempts").iterdir() if _ATTEMPT.fullmatch(p.name))

    def attempt_path(self, number: int) -> Path:
        """`attempts/NNNNNN`."""
        return self.root / "attempts" / f"{number:06d}"

    # ---- checkpoints

    def step_name(self, step: int, attempt: int) -> str:
        """`step-SSSSSSSS-aNNNNNN`."""
        return f"step-{step:08d}-a{attempt:06d}"

    def writer(self, name: str) -> StorageWriter:
        """Files in the checkpoint's folder, each flushed to disk before its future is done."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter

        path = self._path(name)
        with _explained(f"checkpoint {path}"):
            path.mkdir(exist_ok=True)
        return FileSystemWriter(path, sync_files=True)

    def reader(self, name: str) -> StorageReader:
        """Files in the checkpoint's folder."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader

        return FileSystemReader(self._path(name))

    def seal(self, name: str) -> dict[str, int]:
        """Flush the folder itself and say what is in it."""
        path = self._path(name)
        with _explained(f"checkpoint {path}"):
            fsync_folder(path)
            return {p.name: p.stat().st_size for p in sorted(path.iterdir()) if p.is_file()}

    def discard(self, name: str) -> None:
        """Remove the folder, so that a full disk has room again."""
        shutil.rmtree(self._path(name), ignore_errors=True)

    def publish(self, saved: Saved, *, keep: int) -> Pointer:
        """Replace the pointer, then remove what it no longer names.

        Raises:
            ConflictError: A later attempt has published: this process outlived its own.
            EnvironmentFault: The disk is full or refuses.
        """
        with self._lock():
            old = self.pointer()
            newest = old.saved[0] if old and old.saved else None
            if newest is not None and newest.attempt > saved.attempt:
                raise ConflictError(
                    f"attempt {saved.attempt} may not publish step {saved.step} in {self.root}: attempt "
                    f"{newest.attempt} has taken over and published step {newest.step}; end this process"
                )
            rest = [s for s in (old.saved if old else ()) if s.name != saved.name and s.step <= saved.step]
            pointer = Pointer((saved, *rest[: max(keep, 1) - 1]))
            write_atomically(self.root / "checkpoints" / "latest.json", records.dumps(pointer, indent=1).encode())
            self._sweep({s.name for s in pointer.saved}, saved.attempt, saved.step)
            return pointer

    def pointer(self) -> Pointer | None:
        """The published checkpoints.

        Raises:
            ContractError: The file is not a pointer of this version.
        """
        path = self.root / "checkpoints" / "latest.json"
        try:
            text = path.read_bytes()
        except FileNotFoundError:
            return None
        pointer = records.loads(Pointer, text, where=str(path))
        if pointer.version != 1:
            raise ContractError(f"{path}: pointer version {pointer.version} was written by a newer kinemill; upgrade")
        return pointer

    def damage(self, saved: Saved) -> str | None:
        """Files that are missing or have another size than when they were published."""
        path = self._path(saved.name)
        for name, size in saved.files.items():
            try:
                now = (path / name).stat().st_size
            except OSError as exc:
                return f"{name}: {exc.strerror}"
            if now != size:
                return f"{name}: {now} bytes, published with {size}"
        return None

    def _sweep(self, named: set[str], attempt: int, step: int) -> None:
        """Remove checkpoints that nobody names; one that this very attempt may still be writing stays."""
        for path in (self.root / "checkpoints").iterdir():
            match = _STEP.fullmatch(path.name)
            if match is None or path.name in named:
                continue
            if int(match["attempt"]) < attempt or (int(match["attempt"]) == attempt and int(match["step"]) < step):
                shutil.rmtree(path, ignore_errors=True)

    def _path(self, name: str) -> Path:
        return self.root / "checkpoints" / name

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        with _explained(f"run folder {self.root}"), (self.root / "checkpoints" / ".lock").open("wb") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield


def write_atomically(path: Path, data: bytes) -> None:
    """`data` to `path` by temporary file, fsync, rename and fsync of the folder: all of it or nothing.

    Raises:
        EnvironmentFault: The disk is full or refuses; the old file stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _explained(str(path)):
        try:
            with temporary.open("wb") as handle:
                handle.write(data)
                handle.flush()
                os.fsync(handle.fileno())
            temporary.rename(path)
            fsync_folder(path.parent)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """An OSError of the disk as an EnvironmentFault that says what to do."""
    try:
        yield
    except KinemillError:
        raise
    except OSError as exc:
        advice = {
            errno.ENOSPC: "the disk is full: free some room, or point the run at another disk",
            errno.EDQUOT: "the disk quota is used up: free some room, or point the run at another disk",
            errno.EROFS: "the file system is read-only: point the run at a folder that can be written",
            errno.EACCES: "no right to write there: point the run at a folder of your own",
            errno.EPERM: "no right to write there: point the run at a folder of your own",
        }.get(exc.errno or 0, "look at the disk")
        raise EnvironmentFault(f"{what}: {exc.strerror or exc}; {advice}") from exc
