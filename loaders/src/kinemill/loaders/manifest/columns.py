"""NumPy views on one record batch: no copy, no Python object per row, no `take`.

A view is made once per batch and column; a row costs a few index reads. (`take` of 4,096 random
rows from a chunked table was measured at 1.1 ms *per row*: it concatenates whole columns.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from kinemill.contracts import MANIFEST_COLUMNS, MANIFEST_VERSION, ManifestColumn
from kinemill.errors import ContractError, UnsupportedError

__all__ = ["VERSION_KEY", "BatchView", "check_schema"]

VERSION_KEY = b"kinemill.manifest.version"
_PRIMITIVE = {"int64": pa.int64(), "int32": pa.int32(), "float32": pa.float32(), "large_binary": pa.large_binary()}


def _fits(found: pa.DataType, column: ManifestColumn) -> bool:
    if column.type.startswith("dictionary<"):
        return pa.types.is_dictionary(found) and found.value_type in (pa.string(), pa.large_string())
    if column.type.startswith("fixed_size_binary["):
        return found == pa.binary(int(column.type[len("fixed_size_binary[") : -1]))
    return found == _PRIMITIVE[column.type]


def check_schema(schema: pa.Schema, *, where: str) -> dict[str, str]:
    """Refuse what this reader cannot read, by name; return the schema's own metadata as text.

    Raises:
        UnsupportedError: Written by a newer version.
        ContractError: A column is missing or of another type. Columns that we do not know are allowed:
            new ones are appended.
    """
    metadata = {k.decode(): v.decode(errors="replace") for k, v in (schema.metadata or {}).items()}
    version = metadata.get(VERSION_KEY.decode(), "1")
    if not version.isdigit() or int(version) > MANIFEST_VERSION:
        raise UnsupportedError(
            f"{where}: manifest version {version}, this reader knows {MANIFEST_VERSION}; "
            "upgrade kinemill-loaders, or rebuild the manifest with an older writer"
        )
    for column in MANIFEST_COLUMNS:
        index = schema.get_field_index(column.name)
        if index < 0:
            raise ContractError(
                f"{where}: column '{column.name}' is missing; rebuild it with `kinemill manifest build`"
            )
        if not _fits(schema.field(index).type, column):
            raise ContractError(
                f"{where}: column '{column.name}' is {schema.field(index).type}, expected {column.type}"
            )
    return metadata


@dataclass(frozen=True, slots=True)
class _Words:
    """A dictionary column: codes (n,) and the words they stand for."""

    codes: npt.NDArray[Any]
    words: list[str]


@dataclass(frozen=True, slots=True)
class _Blobs:
    """A binary column: offsets (n + 1,), all bytes, and the validity bitmap (None: no nulls)."""

    offsets: npt.NDArray[np.int64]
    data: memoryview
    valid: npt.NDArray[np.uint8] | None
    shift: int

    def at(self, i: int) -> bytes | None:
        bit = i + self.shift
        if self.valid is not None and not self.valid[bit >> 3] >> (bit & 7) & 1:
            return None
        return bytes(self.data[self.offsets[i] : self.offsets[i + 1]])


class BatchView:
    """The columns of one record batch as NumPy, each made on first use."""

    __slots__ = ("_batch", "_views", "_words", "rows", "start")

    def __init__(self, batch: pa.RecordBatch, start: int, words: dict[str, list[str]] | None) -> None:
        """Look at `batch`, whose first row is row `start` of the file.

        Args:
            batch: The rows.
            start: Row number in the file of the first one.
            words: Shared by all batches of a file with one dictionary per field; None where each has its own.
        """
        self._batch = batch
        self._words = {} if words is None else words
        self._views: dict[str, Any] = {}
        self.start = start
        self.rows = batch.num_rows

    def view(self, name: str) -> Any:
        """The column as NumPy array (n,) or (n, width), `_Words` or `_Blobs`."""
        found = self._views.get(name)
        if found is None:
            found = self._views[name] = self._make(name, self._batch.column(name))
        return found

    def array(self, name: str) -> npt.NDArray[Any]:
        """A numeric or fixed-width column; a dictionary column as its codes."""
        found = self.view(name)
        return found.codes if isinstance(found, _Words) else found

    def words(self, name: str) -> list[str]:
        """What the codes of a dictionary column stand for."""
        found: _Words = self.view(name)
        return found.words

    def _make(self, name: str, array: Any) -> Any:
        kind = array.type
        if array.null_count and kind != pa.large_binary():
            raise ContractError(
                f"manifest column '{name}': {array.null_count} nulls in a column that has none by contract"
            )
        if pa.types.is_dictionary(kind):
            if name not in self._words:
                self._words[name] = array.dictionary.to_pylist()
            codes = array.indices
            return _Words(_plain(codes), self._words[name])
        if kind == pa.large_binary():
            bitmap, offsets, data = array.buffers()
            return _Blobs(
                np.frombuffer(memoryview(offsets), np.int64)[array.offset : array.offset + len(array) + 1],
                memoryview(data) if data is not None else memoryview(b""),
                None if bitmap is None or not array.null_count else np.frombuffer(memoryview(bitmap), np.uint8),
                array.offset,
            )
        if pa.types.is_fixed_size_binary(kind):
            width = kind.byte_width
            raw = np.frombuffer(memoryview(array.buffers()[1]), np.uint8)
            return raw[array.offset * width : (array.offset + len(array)) * width].reshape(-1, width)
        return _plain(array)


def _plain(array: Any) -> npt.NDArray[Any]:
    """A primitive array's values; the dtype comes from Arrow's name, since `to_pandas_dtype` wants pandas installed."""
    dtype: np.dtype[Any] = np.dtype({"float": "float32", "double": "float64"}.get(str(array.type), str(array.type)))
    buffer = array.buffers()[1]
    if buffer is None:
        return np.empty(0, dtype)
    whole: npt.NDArray[Any] = np.frombuffer(memoryview(buffer), dtype, count=array.offset + len(array))
    return whole[array.offset :]
