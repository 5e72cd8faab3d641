"""`kinemill.contracts.Store` in a local folder: no server, the same promises."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kinemill.contracts.store import ObjectMeta, Progress
from kinemill.errors import ConflictError, EnvironmentFault, NotFoundError, TruncatedError, UsageError
from kinemill.store.parallel import Lanes, download, filler

__all__ = ["FileStore", "fsync_folder"]

_PRIVATE = ".kinemill-store"
_COPY_BYTES = 4 << 20
_LINK_TRIES = 20


class FileStore:
    """Objects are files below `root`; creation is by link, replacement by rename under a lock.

    Args:
        root: Made if it is not there.
        make: False for a folder that is only read, maybe by somebody who may not write to it: nothing is made.

    Raises:
        EnvironmentFault: It cannot be made.
    """

    def __init__(self, root: Path, *, make: bool = True) -> None:
        self.root = root.absolute()
        self._lanes = Lanes(4)
        if not make:
            return
        try:
            (self.root / _PRIVATE).mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise EnvironmentFault(
                f"{self.url}: the folder cannot be made or written ({exc.strerror}); name one that you may write"
            ) from exc

    def __getstate__(self) -> dict[str, Path]:
        return {"root": self.root}

    def __setstate__(self, state: dict[str, Path]) -> None:
        self.root = state["root"]
        self._lanes = Lanes(4)

    def __repr__(self) -> str:
        return f"FileStore({str(self.root)!r})"

    @property
    def url(self) -> str:
        """`file:///folder`."""
        return self.root.as_uri()

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or "\0" in key or any(part in ("", ".", "..") for part in parts) or parts[0] == _PRIVATE:
            raise UsageError(f"{key!r} is no object key: no empty, '.' or '..' part, no leading slash")
        return self.root / key

    def _open(self, key: str) -> int:
        try:
            return os.open(self._path(key), os.O_RDONLY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as exc:
            raise NotFoundError(f"{self.url}: no object '{key}'") from exc

    def get(self, key: str) -> bytes:
        """The whole object."""
        with open(self._open(key), "rb") as file:  # noqa: PTH123 - a descriptor
            return file.read()

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`."""
        fd = self._open(key)
        try:
            found = os.fstat(fd)
            if etag is not None and _etag(found) != etag:
                raise ConflictError(f"{self.url}/{key}: the object changed (etag {_etag(found)}, expected {etag})")
            if start < 0 or length < 0 or start + length > found.st_size:
                raise TruncatedError(f"{self.url}/{key}: bytes {start}..{start + length} of {found.st_size}")
            whole = os.pread(fd, length, start)
            if len(whole) == length:
                return whole  # as good as always: no second copy
            data = bytearray()
            while len(data) < length and (piece := os.pread(fd, length - len(data), start + len(data))):
                data += piece
            if len(data) < length:
                raise TruncatedError(f"{self.url}/{key}: shrank while it was read")
            return bytes(data)
        finally:
            os.close(fd)

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One read a range."""
        return [self.get_range(key, start, length) for start, length in ranges]

    def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        fd = self._open(key)
        try:
            found = os.fstat(fd)
        finally:
            os.close(fd)
        if not _is_file(found):
            raise NotFoundError(f"{self.url}: no object '{key}'")
        return ObjectMeta(key, found.st_size, _etag(found), found.st_mtime_ns)

    def put_if_absent(self, key: str, data: bytes | Path) -> ObjectMeta:
        """Create; the first of racing callers wins, and a crash leaves all or nothing."""
        target = self._path(key)
        temporary = self._write(data)
        try:
            for attempt in range(_LINK_TRIES):
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                except (FileExistsError, NotADirectoryError) as exc:
                    raise UsageError(f"{self.url}/{key}: an object has the name of one of its folders") from exc
                try:
                    os.link(temporary, target)
                    break
                except FileNotFoundError:  # a `delete` beside us took the empty folder away
                    if attempt == _LINK_TRIES - 1:
                        raise
        except FileExistsError as exc:
            raise ConflictError(f"{self.url}/{key}: exists already") from exc
        finally:
            temporary.unlink()
        fsync_folder(target.parent)
        return self.head(key)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectMeta:
        """Replace while `etag` still holds."""
        target = self._path(key)
        temporary = self._write(data)
        try:
            with self._locked(key):
                try:
                    now = self.head(key).etag
                except NotFoundError:
                    now = None
                if now != etag:
                    raise ConflictError(f"{self.url}/{key}: changed or gone since etag {etag}")
                temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(target.parent)
        return self.head(key)

    def _write(self, data: bytes | Path) -> Path:
        temporary = self.root / _PRIVATE / f"put-{os.getpid()}-{secrets.token_hex(6)}"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            with open(fd, "wb") as out:  # noqa: PTH123 - a descriptor
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        while piece := source.read(_COPY_BYTES):
                            out.write(piece)
                else:
                    out.write(data)
                out.flush()
                os.fsync(out.fileno())
        except OSError as exc:
            temporary.unlink(missing_ok=True)
            if isinstance(data, Path) and isinstance(exc, FileNotFoundError):
                raise NotFoundError(f"{data}: no such file to store") from exc
            raise EnvironmentFault(f"{self.url}: cannot write ({exc.strerror}); is the disk full?") from exc
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        return temporary

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        name = hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()[:2]
        fd = os.open(self.root / _PRIVATE / f"lock-{name}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """In key order."""
        yield from self._walk(self.root, "", prefix)

    def _walk(self, folder: Path, above: str, prefix: str) -> Iterator[ObjectMeta]:
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            return
        for entry in sorted(entries, key=lambda e: e.name + "/" if e.is_dir(follow_symlinks=False) else e.name):
            key = above + entry.name
            if entry.is_dir(follow_symlinks=False):
                within = f"{key}/"
                if key != _PRIVATE and (within.startswith(prefix) or prefix.startswith(within)):
                    yield from self._walk(folder / entry.name, within, prefix)
            elif key.startswith(prefix) and entry.is_file(follow_symlinks=False):
                try:
                    yield self.head(key)
                except NotFoundError:
                    continue

    def download(
        self,
        key: str,
        path: Path,
        *,
        etag: str | None = None,
        size_bytes: int | None = None,
        part_bytes: int = 8 << 20,
        progress: Progress | None = None,
    ) -> ObjectMeta:
        """A copy, by the same parts as from a server."""
        meta = self.head(key) if size_bytes is None else ObjectMeta(key, size_bytes, etag)
        pinned = etag or meta.etag
        return download(
            self._lanes,
            filler(lambda start, length: self.get_range(key, start, length, etag=pinned)),
            meta,
            path,
            part_bytes=part_bytes,
            progress=progress,
        )

    def delete(self, key: str) -> None:
        """Remove, with the folders that are empty then; a missing key is no error."""
        path = self._path(key)
        path.unlink(missing_ok=True)
        for folder in path.parents:
            if folder == self.root:
                return
            try:
                folder.rmdir()
            except OSError:
                return


def _is_file(found: os.stat_result) -> bool:
    import stat

    return stat.S_ISREG(found.st_mode)


def _etag(found: os.stat_result) -> str:
    return f"{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"


def fsync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
