"""`Manifest`: the rows of a curated set as one object that opens in milliseconds and pickles in bytes."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from kinemill.contracts import MANIFEST_COLUMNS, ManifestMode
from kinemill.errors import ConfigError, UsageError
from kinemill.loaders.manifest.columns import BatchView
from kinemill.loaders.manifest.fetch import PART_BYTES, WAIT_S, pull
from kinemill.loaders.manifest.row import ManifestRow
from kinemill.loaders.manifest.sources import ParquetSource, Source, mapped, read_into_memory
from kinemill.loaders.stores import store_for, use_store
from kinemill.settings import cache_dir

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.loaders.manifest.ref import ManifestRef

__all__ = ["Manifest", "default_folder", "open_manifest", "shard_bounds"]


def default_folder() -> Path:
    """Where local copies lie: `$KINEMILL_CACHE_DIR/manifests`, by default /var/cache/kinemill as root, else XDG."""
    return cache_dir() / "manifests"


def shard_bounds(rows: int, rank: int, world: int) -> tuple[int, int]:
    """Rows [start, stop) of `rank`: contiguous, in all exactly `rows`, sizes differ by at most one.

    Raises:
        UsageError: A rank outside the world.
    """
    if world < 1 or not 0 <= rank < world:
        raise UsageError(f"rank {rank} of world size {world}: a rank counts from 0 and lies below the world size")
    return rank * rows // world, (rank + 1) * rows // world


@dataclass(frozen=True, slots=True)
class _Origin:
    """What is pickled instead of rows."""

    mode: str
    ref: ManifestRef | None
    path: str | None
    folder: str | None
    wait_s: float
    part_bytes: int

    def open(self) -> Source:
        """Open, or find it open in this process."""
        with _opening:
            found = _sources.get(self)
            if found is None:
                found = _sources[self] = self._open()
            return found

    def _open(self) -> Source:
        if self.ref is None:
            return mapped(Path(str(self.path)))
        store = store_for(self.ref.store)
        if self.mode == "in_memory":
            return read_into_memory(self.ref, store, part_bytes=self.part_bytes)
        if self.mode == "remote_parquet":
            return ParquetSource(self.ref, store)
        folder = Path(self.folder) if self.folder else default_folder()
        path, use_fd = pull(self.ref, store, folder, wait_s=self.wait_s, part_bytes=self.part_bytes)
        return mapped(path, use_fd)


_sources: dict[_Origin, Source] = {}
_opening = threading.RLock()


def _new_lock() -> None:
    global _opening  # noqa: PLW0603 - the state of the process
    _opening = threading.RLock()  # one that another thread held during the fork would never open again


os.register_at_fork(after_in_child=_new_lock)


def forget_open() -> None:
    """Close what this process holds open, so that `collect` may remove it. For tools and tests."""
    with _opening:
        _sources.clear()


class Manifest:
    """A range of rows of one manifest file. Slices share it; nothing is copied.

    It pickles as (origin, row range), well under 4 KB, and opens lazily in each process: by the
    download protocol, so eight ranks and their workers make one copy and one set of pages.

    Attributes:
        start: First row in the file.
        stop: One past the last row in the file.
    """

    __slots__ = ("_origin", "_source", "start", "stop")

    def __init__(self, origin: _Origin, start: int, stop: int, source: Source | None = None) -> None:
        """Not for callers: use `open_manifest` or `Manifest.from_file`."""
        self._origin = origin
        self._source = source
        self.start = start
        self.stop = stop

    @classmethod
    def from_file(cls, path: str | Path) -> Manifest:
        """Map a local Arrow IPC file as it is. The file must never be changed in place (rename over it instead)."""
        origin = _Origin("node_mmap", None, str(Path(path).resolve()), None, WAIT_S, PART_BYTES)
        source = origin.open()
        return cls(origin, 0, source.rows, source)

    def __reduce__(self) -> tuple[Any, ...]:
        """Origin and range only: a pickled slice of Arrow data would carry its whole parent batch."""
        return Manifest, (self._origin, self.start, self.stop)

    def __len__(self) -> int:
        return self.stop - self.start

    def __repr__(self) -> str:
        where = self._origin.path or (self._origin.ref and (self._origin.ref.id or self._origin.ref.key))
        return f"Manifest({where}, rows {self.start}..{self.stop}, {self._origin.mode})"

    @property
    def source(self) -> Source:
        """The open file of this process."""
        if self._source is None:
            self._source = self._origin.open()
            if self.stop > self._source.rows:
                raise ConfigError(f"{self!r}: the file has {self._source.rows} rows")
        return self._source

    @property
    def metadata(self) -> dict[str, str]:
        """The file's own metadata: version, rows, seed, statistics, ..."""
        return self.source.metadata

    @property
    def identity(self) -> str:
        """What names the rows in a checkpoint: sha256 of the file (its path for a bare file) and the range."""
        name = self._origin.ref.sha256 if self._origin.ref else str(self._origin.path)
        return f"{name}[{self.start}:{self.stop}]"

    @property
    def store_url(self) -> str | None:
        """The store that the manifest came from; episodes lie there too unless told otherwise."""
        return self._origin.ref.store if self._origin.ref else None

    # ---- ranges

    def slice(self, start: int, stop: int) -> Manifest:
        """Rows [start, stop) of this one; zero-copy.

        Raises:
            UsageError: Outside this manifest.
        """
        if not 0 <= start <= stop <= len(self):
            raise UsageError(f"slice {start}..{stop} of {len(self)} rows")
        return Manifest(self._origin, self.start + start, self.start + stop, self._source)

    def shard(self, rank: int, world: int) -> Manifest:
        """This rank's 1/N, [rank*rows//world, (rank+1)*rows//world); may be empty where world > rows.

        The file's order is shuffled when it is written, so contiguous shards are alike.
        """
        return self.slice(*shard_bounds(len(self), rank, world))

    # ---- rows and columns

    def parts(self) -> Iterator[tuple[BatchView, int, int]]:
        """(batch, first, last + 1) for each batch that this range touches, in order; positions within the batch."""
        source = self.source
        row = self.start
        while row < self.stop:
            view = source.batch(source.find(row))
            first = row - view.start
            last = min(view.rows, self.stop - view.start)
            yield view, first, last
            row = view.start + last

    def arrays(self, name: str) -> Iterator[npt.NDArray[Any]]:
        """The column as NumPy views, one per batch; dictionary columns as codes, blobs are not allowed."""
        for view, first, last in self.parts():
            yield view.array(name)[first:last]

    def row(self, index: int) -> ManifestRow:
        """Row `index` of this range.

        Raises:
            IndexError: Outside the range.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        source = self.source
        at = self.start + index
        view = source.batch(source.find(at))
        i = at - view.start
        return ManifestRow(*[read(view.view(name), i) for name, read in _READERS])

    def __getitem__(self, index: int) -> ManifestRow:
        return self.row(index)

    def __iter__(self) -> Iterator[ManifestRow]:
        for index in range(len(self)):
            yield self.row(index)


_READ: dict[str, Any] = {
    "dictionary": lambda view, i: view.words[view.codes[i]],
    "fixed_size_binary": lambda view, i: view[i].tobytes(),
    "int64": lambda view, i: int(view[i]),
    "int32": lambda view, i: int(view[i]),
    "float32": lambda view, i: float(view[i]),
    "large_binary": lambda view, i: view.at(i),
}
_READERS = [(column.name, _READ[re.split(r"[\[<]", column.type)[0]]) for column in MANIFEST_COLUMNS]


def open_manifest(
    ref: ManifestRef,
    *,
    mode: str = "node_mmap",
    store: Store | None = None,
    folder: Path | None = None,
    wait_s: float = WAIT_S,
    part_bytes: int = PART_BYTES,
) -> Manifest:
    """Open a manifest in one of the three modes; rows are identical in all.

    Args:
        ref: From `resolve(store, id)`.
        mode: `node_mmap` (one local copy per node, mapped by all), `remote_parquet` (row groups read from
            the store by every process) or `in_memory` (every process holds all of it).
        store: The object to use in this process and its forks; default: opened from `ref.store` where needed.
        folder: Local folder of `node_mmap`; default `default_folder()`.
        wait_s: How long to wait for another process of the node that fetches the same file.
        part_bytes: Bytes per ranged GET.

    Raises:
        ConfigError: No such mode.
        DeadlineError, EnvironmentFault, CorruptError: See `kinemill.loaders.manifest.fetch.pull`.
    """
    if mode not in ManifestMode:
        raise ConfigError(f"manifest.mode = {mode!r}: one of {', '.join(ManifestMode)}")
    if store is not None:
        use_store(store)
        ref = replace(ref, store=store.url)
    origin = _Origin(mode, ref, None, str(folder) if folder else None, wait_s, part_bytes)
    source = origin.open()
    return Manifest(origin, 0, source.rows, source)
