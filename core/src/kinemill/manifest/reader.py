"""Looks into a manifest file on this machine: its metadata, its sums, its difference to another."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinemill.errors import CorruptError, UnsupportedError
from kinemill.manifest.schema import METADATA_PREFIX

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ManifestFile"]


class ManifestFile:
    """A mapped manifest file; a context manager.

    Raises:
        CorruptError: Not an Arrow file, or cut off.
        UnsupportedError: Written by a newer version.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        from kinemill.contracts import MANIFEST_VERSION

        self.path = path
        self._map = pa.memory_map(str(path), "r")
        try:
            self._reader = pa.ipc.open_file(self._map)
        except (pa.ArrowInvalid, OSError) as exc:
            self._map.close()
            raise CorruptError(f"{path}: not a whole Arrow file ({exc})") from exc
        version = self.metadata.get("version", "")
        if not version.isdigit() or int(version) > MANIFEST_VERSION:
            self.close()
            raise UnsupportedError(f"{path}: manifest version {version!r}, this reader knows {MANIFEST_VERSION}")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the mapping; tables that were read must not be used any more."""
        self._map.close()

    @property
    def metadata(self) -> dict[str, str]:
        """The schema's metadata without the prefix."""
        found = self._reader.schema.metadata or {}
        prefix = METADATA_PREFIX.encode()
        return {k[len(prefix) :].decode(): v.decode() for k, v in found.items() if k.startswith(prefix)}

    @property
    def batches(self) -> int:
        """Record batches in the file."""
        return int(self._reader.num_record_batches)

    def table(self) -> pa.Table:
        """All rows, without a copy."""
        return self._reader.read_all()

    def rows_by(self, column: str) -> dict[str, int]:
        """Rows by the words of a dictionary column, sorted by word."""
        import pyarrow.compute as pc

        counted: Any = pc.value_counts(self.table()[column].combine_chunks())
        words = counted.field("values").cast("string").to_pylist()
        pairs = zip(words, counted.field("counts").to_pylist(), strict=True)
        return {str(word): int(count) for word, count in sorted(pairs)}
