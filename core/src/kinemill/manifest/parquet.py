"""The same rows as Parquet, beside the Arrow file: for engines, and for loaders' `remote_parquet`.

One row group per record batch, so that a reader can take the groups that it needs. The metadata carries the Arrow
file's sha256: which rows these are.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill.errors import ConflictError, CorruptError
from kinemill.manifest.schema import METADATA_PREFIX

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.manifest.package import ManifestPackage

__all__ = ["SOURCE_KEY", "parquet_key", "publish_parquet", "write_parquet"]

SOURCE_KEY = METADATA_PREFIX + "arrow_sha256"
"""Schema metadata: of the Arrow file that the rows came from."""


def parquet_key(package: ManifestPackage) -> str:
    """Where the Parquet form lies: `manifests/<id>/data-<sha256 of the Arrow file>.parquet`."""
    return package.key.removesuffix(".arrow") + ".parquet"


def write_parquet(arrow: Path, target: Path, *, sha256: str) -> int:
    """Write the rows of an Arrow IPC file as Parquet, batch by batch.

    Args:
        arrow: A whole manifest file.
        target: A new file.
        sha256: Of `arrow`.

    Returns:
        Rows written.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pa.memory_map(str(arrow), "r") as mapped, pa.ipc.open_file(mapped) as reader:
        schema = reader.schema.with_metadata({**(reader.schema.metadata or {}), SOURCE_KEY.encode(): sha256.encode()})
        rows = 0
        with pq.ParquetWriter(target, schema, compression="zstd", compression_level=1) as writer:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index).replace_schema_metadata(schema.metadata)
                if batch.num_rows:
                    writer.write_batch(batch, row_group_size=batch.num_rows)
                rows += batch.num_rows
        return rows


def publish_parquet(store: Store, package: ManifestPackage, arrow: Path) -> str:
    """Put the Parquet form of a published manifest beside it; a second time changes nothing.

    Args:
        store: The corpus.
        package: The manifest.
        arrow: Its Arrow file on this machine, sha256 known to be right.

    Returns:
        The key.

    Raises:
        CorruptError: Other rows stand under the key.
    """
    key = parquet_key(package)
    with tempfile.TemporaryDirectory(prefix="kinemill-parquet-", dir=arrow.parent) as folder:
        path = Path(folder) / "manifest.parquet"
        write_parquet(arrow, path, sha256=package.sha256)
        try:
            store.put_if_absent(key, path)
        except ConflictError:
            stands = Path(folder) / "stands.parquet"
            store.download(key, stands)
            told = _facts(stands)
            if told != (package.rows, package.sha256):
                raise CorruptError(
                    f"{store.url}/{key}: {told[0]} rows of the Arrow file {told[1][:12] or '(unknown)'}, expected "
                    f"{package.rows} of {package.sha256[:12]}; remove the object and export again"
                ) from None
    return key


def _facts(path: Path) -> tuple[int, str]:
    """(rows, sha256 of the Arrow file) that a Parquet file tells."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            metadata: dict[bytes, bytes] = file.schema_arrow.metadata or {}
            found: Any = file.metadata.num_rows
            return int(found), metadata.get(SOURCE_KEY.encode(), b"").decode()
    except pa.ArrowInvalid as exc:
        raise CorruptError(f"{path.name}: not a whole Parquet file ({exc})") from exc
