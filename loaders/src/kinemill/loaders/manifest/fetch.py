"""One copy of a manifest per node: whoever comes first fetches it, the others wait and map it.

The order of the steps is the protocol; each may be cut by kill -9 or a full disk, and the next
caller still ends with a whole file or a clear error:

1. flock `<sha>.lock` (wait bounded, the holder is named)
2. `<sha>.ok` fits the file: reuse it
3. sweep temporaries of dead fetchers
4. `Store.download` into our own: fallocate (a full disk shows before a byte moves), then parallel ranged GETs with
   If-Match, each written in place and on its way to the disk while the next arrive
5. fsync, sha256, rename, fsync of the folder, `<sha>.ok` by rename

It needs no torch.distributed and no rank: "one per node" follows from the local disk.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinemill.errors import CorruptError, EnvironmentFault
from kinemill.loaders.manifest.locks import NETWORK_FILE_SYSTEMS, file_system_of, hold, share, try_exclusive
from kinemill.store.files import fsync_folder

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.contracts.store import Progress
    from kinemill.loaders.manifest.ref import ManifestRef

__all__ = ["Local", "collect", "local_paths", "pull"]

log = logging.getLogger(__name__)

PART_BYTES = 8 << 20
"""Per ranged GET."""
WAIT_S = 1800.0
_warned: set[str] = set()


@dataclass(frozen=True, slots=True)
class Local:
    """The four names of one manifest on this node."""

    data: Path
    ok: Path
    lock: Path
    use: Path


def local_paths(folder: Path, sha256: str) -> Local:
    """Where the manifest with this hash lies under `folder`; content-addressed, so never replaced."""
    return Local(*(folder / f"{sha256}{suffix}" for suffix in (".arrow", ".ok", ".lock", ".use")))


def _is_whole(at: Local, ref: ManifestRef) -> bool:
    """Whether `.ok` tells of exactly this file. Cheap: two stats and a small read."""
    try:
        told = json.loads(at.ok.read_text())
        stat = at.data.stat()
    except (OSError, ValueError):
        return False
    mine = {"sha256": ref.sha256, "size_bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    return stat.st_size == ref.size_bytes and isinstance(told, dict) and all(told.get(k) == v for k, v in mine.items())


def sha256_of(path: Path) -> str:
    """The file's sha256, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _prepare(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as exc:
        raise EnvironmentFault(
            f"{folder}: cannot make the manifest folder ({exc.strerror}); set manifest.dir or KINEMILL_CACHE_DIR"
        ) from exc
    kind = file_system_of(folder)
    if (kind in NETWORK_FILE_SYSTEMS or kind.startswith("fuse.")) and str(folder) not in _warned:
        _warned.add(str(folder))
        log.warning(
            "%s lies on a network mount (%s): each page fault is a remote read; set manifest.dir to a local disk",
            folder,
            kind,
        )


def _fetch(ref: ManifestRef, store: Store, at: Local, part_bytes: int, progress: Progress | None) -> None:
    for stale in at.data.parent.glob(f"{ref.sha256}.*.part"):  # we hold the lock, so their owners are gone
        stale.unlink(missing_ok=True)
    temp = at.data.parent / f"{ref.sha256}.{os.getpid()}.part"
    os.close(os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644))
    try:
        try:
            store.download(
                ref.key, temp, etag=ref.etag, size_bytes=ref.size_bytes, part_bytes=part_bytes, progress=progress
            )
        except EnvironmentFault as exc:
            raise EnvironmentFault(f"{exc}; free some room with `kinemill load pull --gc`") from exc
        with temp.open("rb") as file:
            os.fsync(file.fileno())
            found = hashlib.file_digest(file, "sha256").hexdigest()
        if found != ref.sha256:
            raise CorruptError(
                f"{store.url}/{ref.key}: sha256 is {found[:12]}..., the pointer says {ref.sha256[:12]}...; "
                "nothing was kept, check the object with `kinemill manifest verify`"
            )
        temp.rename(at.data)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_folder(at.data.parent)
    _write_ok(at, ref)


def _write_ok(at: Local, ref: ManifestRef) -> None:
    stat = at.data.stat()
    temp = at.ok.with_suffix(f".{os.getpid()}.oktmp")
    try:
        with temp.open("w") as file:
            json.dump(
                {
                    "sha256": ref.sha256,
                    "size_bytes": stat.st_size,
                    "mtime_ns": stat.st_mtime_ns,
                    "from": f"{ref.store}/{ref.key}",
                },
                file,
            )
            file.flush()
            os.fsync(file.fileno())
        temp.rename(at.ok)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise
    fsync_folder(at.data.parent)


def pull(
    ref: ManifestRef,
    store: Store,
    folder: Path,
    *,
    wait_s: float = WAIT_S,
    part_bytes: int = PART_BYTES,
    verify: bool = False,
    progress: Progress | None = None,
) -> tuple[Path, int]:
    """The local copy of `ref` under `folder`, fetched at most once per node, and a lock that keeps it.

    Args:
        ref: The manifest.
        store: Where it lies; the object-store API, never a mount.
        folder: On a local disk.
        wait_s: How long to wait for another process that fetches the same file.
        part_bytes: Bytes per ranged GET.
        verify: Hash a copy that is already there too, and fetch it again if it rotted.
        progress: Called with (bytes so far, bytes in all).

    Returns:
        The path, and a descriptor: while it is open here or in a fork, `collect` leaves the file alone.

    Raises:
        DeadlineError: Another process held the lock for `wait_s`; its pid is named.
        EnvironmentFault: No room, or no rights. Nothing is left behind.
        CorruptError: The object is not what the pointer says. Nothing is left behind.
    """
    _prepare(folder)
    at = local_paths(folder, ref.sha256)
    use = share(at.use)
    try:
        if not verify and _is_whole(at, ref):
            _touch(at.ok)
            return at.data, use
        with hold(at.lock, wait_s=wait_s, what=f"manifest {ref.id or ref.key}"):
            whole = _is_whole(at, ref)
            if whole and verify and sha256_of(at.data) != ref.sha256:
                log.warning("%s rotted on the local disk; it is fetched again", at.data)
                whole = False
            if not whole:
                at.ok.unlink(missing_ok=True)
                _fetch(ref, store, at, part_bytes, progress)
            _touch(at.ok)
    except BaseException:
        os.close(use)
        raise
    return at.data, use


def _touch(ok: Path) -> None:
    """Note the use: collection goes by this time, since file systems mostly do not keep access times."""
    with contextlib.suppress(OSError):  # another user's copy; they collect it
        os.utime(ok)


def collect(folder: Path, *, keep: int = 2, dry_run: bool = False) -> list[Path]:
    """Remove local manifests that nobody uses, but for the `keep` last used; temporaries of dead fetchers too.

    Every one has its origin in the store, so nothing is lost. A copy in use (by any process of the
    node) or being fetched is never touched.

    Returns:
        The data files and temporaries removed, or that would be.
    """
    removed: list[Path] = []
    used = sorted(folder.glob("*.ok"), key=lambda ok: ok.stat().st_mtime_ns, reverse=True)
    stale = {part.name.split(".")[0] for part in folder.glob("*.part")} - {ok.stem for ok in used}
    for sha in [ok.stem for ok in used[keep:]] + sorted(stale):
        at = local_paths(folder, sha)
        lock = try_exclusive(at.lock)
        if lock is None:
            continue
        try:
            use = try_exclusive(at.use)
            if use is None:
                continue
            try:
                removed += [path for path in (at.data, *folder.glob(f"{sha}.*.part")) if path.exists()]
                if not dry_run:
                    for path in (at.ok, at.data, *folder.glob(f"{sha}.*.part"), at.use, at.lock):
                        path.unlink(missing_ok=True)
            finally:
                os.close(use)
        finally:
            os.close(lock)
    return removed
