"""Where rows come from in each of the three modes; all give the same batches of the same rows."""

from __future__ import annotations

import bisect
import hashlib
import io
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pyarrow as pa

from kinemill.contracts import BATCH_ROWS
from kinemill.errors import ContractError, CorruptError, NotFoundError, TruncatedError
from kinemill.loaders.manifest.columns import BatchView, check_schema
from kinemill.loaders.manifest.fetch import PART_BYTES
from kinemill.manifest.parquet import SOURCE_KEY

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.loaders.manifest.ref import ManifestRef

__all__ = ["ArrowSource", "ParquetSource", "Source", "mapped", "read_into_memory"]

STREAMS = 8
"""Ranged GETs at once; more gave nothing on a local server (measured)."""
ROW_GROUPS_KEPT = 4
"""Decoded Parquet row groups held per process; at 1 M rows each some 100 MB apiece."""


class Source(Protocol):
    """Rows in batches; random access to a batch is cheap or cached."""

    rows: int
    metadata: dict[str, str]
    where: str

    @property
    def batches(self) -> int:
        """How many batches there are."""
        ...

    def batch(self, index: int) -> BatchView:
        """The batch at `index`."""
        ...

    def find(self, row: int) -> int:
        """The index of the batch that holds `row`."""
        ...


class ArrowSource:
    """An Arrow IPC file, mapped or in memory: all batches at hand, zero-copy."""

    def __init__(self, reader: pa.ipc.RecordBatchFileReader, where: str, use_fd: int | None = None) -> None:
        """Look at every batch's header; column pages stay untouched.

        Args:
            reader: The open file.
            where: What to call it in errors.
            use_fd: The shared lock that keeps the local copy; closed with this object.
        """
        self.where = where
        self.metadata = check_schema(reader.schema, where=where)
        self._use_fd = use_fd
        words: dict[str, list[str]] = {}  # an IPC file has one dictionary per field
        self._views: list[BatchView] = []
        self._starts: list[int] = []
        self.rows = 0
        for index in range(reader.num_record_batches):
            view = BatchView(reader.get_batch(index), self.rows, words)
            self._views.append(view)
            self._starts.append(self.rows)
            self.rows += view.rows
        told = self.metadata.get("kinemill.manifest.rows")
        if told is not None and told.isdigit() and int(told) != self.rows:
            raise CorruptError(f"{where}: {self.rows} rows, its own metadata says {told}")
        self._even = all(view.rows == BATCH_ROWS for view in self._views[:-1])

    @property
    def batches(self) -> int:
        """How many batches there are."""
        return len(self._views)

    def batch(self, index: int) -> BatchView:
        """The batch at `index`."""
        return self._views[index]

    def find(self, row: int) -> int:
        """One division where batches are even, as our writer makes them."""
        return row // BATCH_ROWS if self._even else bisect.bisect_right(self._starts, row) - 1

    def __del__(self) -> None:
        """Let the collector have the file."""
        if getattr(self, "_use_fd", None) is not None:
            os.close(self._use_fd)  # type: ignore[arg-type]  # checked on the line above
            self._use_fd = None


def _open(file: Any, where: str) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid as exc:
        raise TruncatedError(
            f"{where}: not a whole Arrow IPC file ({str(exc)[:120]}); fetch or build it again"
        ) from exc


def mapped(path: Path, use_fd: int | None = None) -> ArrowSource:
    """`node_mmap`: the file's pages, shared by every process of the node that maps it."""
    if path.stat().st_size == 0:
        raise TruncatedError(f"{path}: empty file, expected an Arrow IPC file")
    return ArrowSource(_open(pa.memory_map(str(path), "r"), str(path)), str(path), use_fd)


def read_into_memory(ref: ManifestRef, store: Store, *, part_bytes: int = PART_BYTES) -> ArrowSource:
    """`in_memory`: each process fetches and holds all of it. For small manifests and for comparison."""
    buffer = bytearray(ref.size_bytes)
    view = memoryview(buffer)
    where = f"{store.url}/{ref.key}"

    def part(start: int) -> None:
        data = store.get_range(ref.key, start, min(part_bytes, ref.size_bytes - start), etag=ref.etag)
        view[start : start + len(data)] = data

    with ThreadPoolExecutor(STREAMS, thread_name_prefix="manifest") as pool:
        list(pool.map(part, range(0, ref.size_bytes, part_bytes)))
    if hashlib.sha256(buffer).hexdigest() != ref.sha256:
        raise CorruptError(f"{where}: sha256 is not the pointer's {ref.sha256[:12]}...")
    return ArrowSource(_open(pa.BufferReader(pa.py_buffer(buffer)), where), where)


class _RangeFile(io.RawIOBase):
    """A store object as a file: each read is one ranged GET."""

    def __init__(self, store: Store, key: str) -> None:
        self._store, self._key = store, key
        self._size = store.head(key).size_bytes
        self._at = 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0 if whence == os.SEEK_SET else self._at if whence == os.SEEK_CUR else self._size)
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        """pyarrow asks for it."""
        return self._size

    def read(self, size: int = -1) -> bytes:
        count = max(0, min(self._size - self._at, self._size if size is None or size < 0 else size))
        data = self._store.get_range(self._key, self._at, count) if count else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        return self.read(-1)


class ParquetSource:
    """`remote_parquet`: row groups read from the store as they are needed, decoded by every process."""

    def __init__(self, ref: ManifestRef, store: Store) -> None:
        """Read the footer: three requests.

        Raises:
            ContractError: The manifest has no Parquet form.
        """
        import pyarrow.parquet as pq

        key = ref.parquet_key or ref.key.removesuffix(".arrow") + ".parquet"
        self.where = f"{store.url}/{key}"
        try:
            file = _RangeFile(store, key)
        except NotFoundError as exc:
            raise ContractError(
                f"{self.where}: no Parquet form for manifest.mode = remote_parquet; "
                f"put one there with `kinemill manifest export {ref.id or 'ID'}`, or use node_mmap"
            ) from exc
        self._file = pq.ParquetFile(pa.PythonFile(file, mode="r"), pre_buffer=True)
        self.metadata = check_schema(self._file.schema_arrow, where=self.where)
        self.rows = self._file.metadata.num_rows
        self._starts = [0]
        for index in range(self._file.num_row_groups):
            self._starts.append(self._starts[-1] + self._file.metadata.row_group(index).num_rows)
        self._kept: OrderedDict[int, BatchView] = OrderedDict()
        self._lock = threading.Lock()
        if ref.rows >= 0 and ref.rows != self.rows:
            raise CorruptError(f"{self.where}: {self.rows} rows, the pointer says {ref.rows}")
        told = self.metadata.pop(SOURCE_KEY, ref.sha256)
        if told != ref.sha256:
            raise CorruptError(f"{self.where}: rows of the Arrow file {told[:12]}, the pointer says {ref.sha256[:12]}")

    @property
    def batches(self) -> int:
        """Row groups."""
        return len(self._starts) - 1

    def batch(self, index: int) -> BatchView:
        """Decode a row group, or find it among the last few."""
        with self._lock:
            found = self._kept.get(index)
            if found is None:
                table = self._file.read_row_group(index).combine_chunks()
                parts = table.to_batches()
                if len(parts) != 1 and table.num_rows:
                    raise ContractError(
                        f"{self.where}: row group {index} does not fit one batch; write <= 1 M rows each"
                    )
                found = self._kept[index] = BatchView(parts[0], self._starts[index], None)
                while len(self._kept) > ROW_GROUPS_KEPT:
                    self._kept.popitem(last=False)
            else:
                self._kept.move_to_end(index)
            return found

    def find(self, row: int) -> int:
        """Row groups may differ in size."""
        return bisect.bisect_right(self._starts, row) - 1
