"""Writes a manifest file: even batches, one sorted dictionary per field, the same bytes for the same rows.

Arrow's file format has one dictionary per field for the whole file, so all words are known before the first
row is written. Nothing that differs between two runs (times, host names, paths) goes into the file.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinemill.contracts import BATCH_ROWS
from kinemill.errors import ContractError, LimitError, StateError
from kinemill.manifest.schema import dictionary_fields, manifest_schema

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ManifestWriter", "WrittenManifest"]


@dataclass(frozen=True, slots=True)
class WrittenManifest:
    """A finished file."""

    path: Path
    sha256: str
    size_bytes: int
    rows: int


class _Hashing:
    """A file object that hashes what goes through it; Arrow writes strictly forward."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self.sha256 = hashlib.sha256()
        self.size = 0
        self.closed = False

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._file.write(view)
        self.sha256.update(view)
        self.size += len(view)
        return len(view)

    def tell(self) -> int:
        return self.size

    def flush(self) -> None:
        self._file.flush()

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()


class ManifestWriter:
    """Writes one manifest file; a context manager.

    Args:
        path: Where it shall stand; written under a temporary name, fsynced and renamed by `close`.
        dictionaries: Every word of every dictionary column; sorted here, doubles are dropped.
        metadata: Kept in the schema, such as seed and snapshot_id; nothing that differs between two runs.
        batch_rows: Rows per record batch; the last may be shorter.

    Raises:
        LimitError: More words than the column's index type can count.
        ContractError: A dictionary column without words, or words for a column that is none.
    """

    def __init__(
        self,
        path: Path,
        dictionaries: Mapping[str, Sequence[str]],
        *,
        metadata: Mapping[str, str] | None = None,
        batch_rows: int = BATCH_ROWS,
    ) -> None:
        import pyarrow as pa

        room = dictionary_fields()
        if set(dictionaries) != set(room):
            missing, extra = sorted(set(room) - set(dictionaries)), sorted(set(dictionaries) - set(room))
            raise ContractError(f"manifest dictionaries: missing {missing}, unknown {extra}")
        self._words: dict[str, Any] = {}
        for name, words in dictionaries.items():
            unique = sorted(set(words))
            if len(unique) > room[name]:
                raise LimitError(f"manifest column '{name}' has {len(unique)} different words, room is {room[name]}")
            self._words[name] = pa.array(unique, pa.string())
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
        self._temporary.unlink(missing_ok=True)
        self._schema = manifest_schema(metadata)
        self._batch_rows = batch_rows
        self._pending: list[pa.Table] = []
        self._waiting = 0
        self.rows = 0
        self._sink = _Hashing(self._temporary)
        options = pa.ipc.IpcWriteOptions(compression=None, unify_dictionaries=False, emit_dictionary_deltas=False)
        sink: Any = self._sink  # a file for Arrow, though no io.IOBase
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), self._schema, options=options)
        self.written: WrittenManifest | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()

    def add(self, rows: pa.RecordBatch | pa.Table) -> None:
        """Append rows with all columns of the contract; dictionary columns as plain strings.

        Raises:
            ContractError: A column is missing, of a type that does not fit, holds a null or an unknown word.
        """
        import pyarrow as pa

        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        self._pending.append(pa.table([self._column(table, f) for f in self._schema], schema=self._schema))
        self._waiting += table.num_rows
        while self._waiting >= self._batch_rows:
            self._write(self._batch_rows)

    def _column(self, table: pa.Table, field: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        if field.name not in table.column_names:
            raise ContractError(f"manifest column '{field.name}' is missing")
        column = table[field.name]
        if column.null_count and not field.nullable:
            raise ContractError(f"manifest column '{field.name}': {column.null_count} nulls in a column that has none")
        if field.name not in self._words:
            try:
                return column.cast(field.type)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as exc:
                raise ContractError(f"manifest column '{field.name}': {exc}") from exc
        words = self._words[field.name]
        plain = column.cast(pa.string())
        codes: Any = pc.index_in(plain, value_set=words)
        if codes.null_count:
            unknown = plain.filter(pc.is_null(codes))[0].as_py()
            raise ContractError(f"manifest column '{field.name}': the word {unknown!r} is not in its dictionary")
        chunks = [pa.DictionaryArray.from_arrays(c.cast(field.type.index_type), words) for c in codes.chunks]
        return pa.chunked_array(chunks, type=field.type)

    def _write(self, rows: int) -> None:
        """The next `rows` of what waits, as one batch."""
        import pyarrow as pa

        whole = pa.concat_tables(self._pending) if len(self._pending) > 1 else self._pending[0]
        part, rest = whole.slice(0, rows), whole.slice(rows)
        arrays: list[Any] = []
        for field in self._schema:
            column = part[field.name]
            if field.name in self._words:
                # All chunks share the one dictionary, so only the codes are joined.
                chunks: list[Any] = column.chunks
                codes = pa.concat_arrays([c.indices for c in chunks])
                arrays.append(pa.DictionaryArray.from_arrays(codes, self._words[field.name]))
            else:
                arrays.append(pa.concat_arrays(column.chunks))
        self._writer.write_batch(pa.record_batch(arrays, schema=self._schema))
        self.rows += rows
        self._waiting -= rows
        self._pending = [rest] if rest.num_rows else []

    def close(self) -> WrittenManifest:
        """Write what waits, make the file durable and give it its name."""
        if self.written is not None:
            return self.written
        if self._sink.closed:
            raise StateError("the manifest writer was aborted")
        try:
            if self._waiting:
                self._write(self._waiting)
            self._writer.close()
            self._sink.close()
            self._temporary.replace(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except BaseException:
            self.abort()
            raise
        self.written = WrittenManifest(self._path, self._sink.sha256.hexdigest(), self._sink.size, self.rows)
        return self.written

    def abort(self) -> None:
        """Give up; nothing stands under the path."""
        if not self._sink.closed:
            self._sink.close()
        self._temporary.unlink(missing_ok=True)
