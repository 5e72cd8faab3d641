"""Where the catalog's changes are exported to; first and so far only: the Iceberg table `episodes`.

The watermark travels in the commit itself, so data and "how far" cannot disagree: a crash before the commit leaves
nothing that a reader sees, a crash after it is found out by reading the table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable
from urllib.parse import unquote, urlsplit

from kinemill.errors import ConfigError, ConflictError, KinemillError, StateError, UnavailableError
from kinemill.pipelines.catalog.database import sqlalchemy_url
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.schema import EPISODES_TABLE, NAMESPACE, arrow_schema, iceberg_schema
from kinemill.pipelines.warehouse.watermark import Watermark

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table

    from kinemill.store.config import Credentials

__all__ = ["ExportTarget", "IcebergTarget", "open_sql_catalog", "open_target"]

_OWNER = "kinemill.catalog"
_FILE_BYTES = 128 << 20
"""As Arrow in memory: a file is written while the next one is read. Merging small ones is left to other engines."""
_ROW_GROUP_ROWS = 250_000
_DICTIONARY_BYTES = 256 << 10
"""Columns that never repeat give up sooner: a fifth less CPU to write and 6 % smaller than at 2 MiB (measured)."""


@runtime_checkable
class ExportTarget(Protocol):
    """A place that takes batches of `schema.EPISODES` and remembers the watermark with them, atomically."""

    def watermark(self) -> Watermark | None:
        """That of the last `append` that came through, by anybody; None where there was none."""
        ...

    def append(
        self,
        batches: Iterable[pa.RecordBatch],
        watermark: Watermark,
        *,
        after: Watermark | None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        """Add rows and move the watermark, both or neither.

        Args:
            batches: Of `arrow_schema()`; consumed once.
            watermark: The new one.
            after: What the caller believes the watermark to be.
            before_commit: Called when all rows are written and nothing is visible yet; may raise.

        Returns:
            Rows added.

        Raises:
            ConflictError: The watermark is not `after`: another exporter was here. Nothing was added.
            UnavailableError: Nothing is known to have been added; ask `watermark()`.
        """
        ...


def open_sql_catalog(catalog_url: str, warehouse_url: str, credentials: Credentials | None = None) -> SqlCatalog:
    """pyiceberg's catalog in the same Postgres, files under `warehouse_url` (`s3://...` or `file:///...`).

    Raises:
        UnavailableError: No connection.
    """
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy import create_engine
    from sqlalchemy.exc import SQLAlchemyError
    from sqlalchemy.pool import NullPool

    uri = sqlalchemy_url(catalog_url)
    # Unqualified names of pyiceberg's: without this they land in the schema of a user who is called like it.
    uri += ("&" if "?" in uri else "?") + "options=-c%20search_path%3Dpublic"
    properties = {"uri": uri, **_io(warehouse_url, credentials)}
    try:
        catalog = SqlCatalog(NAMESPACE, **properties)
    except SQLAlchemyError as exc:
        raise UnavailableError(f"the Iceberg catalog: {_first_line(exc)}") from exc
    # Two statements a commit need no pool, and nobody closes a pyiceberg catalog.
    catalog.engine.dispose()
    catalog.engine = create_engine(properties["uri"], poolclass=NullPool)
    return catalog


def _io(url: str, credentials: Credentials | None) -> dict[str, str]:
    scheme = urlsplit(url).scheme
    if scheme == "file":
        return {"warehouse": str(Path(unquote(urlsplit(url).path)))}
    if scheme != "s3":
        raise ConfigError(f"warehouse URL {url!r}: expected s3://bucket/prefix or file:///folder")
    from kinemill.store.config import Credentials, parse_s3_url

    address = parse_s3_url(url)
    keys = credentials or Credentials.find()
    found = {
        "warehouse": f"s3://{address.bucket}/{address.prefix}".rstrip("/"),
        "s3.access-key-id": keys.access_key,
        "s3.secret-access-key": keys.secret_key,
        "s3.region": address.region,
        "s3.force-virtual-addressing": "true" if address.style == "host" else "false",
        "s3.connect-timeout": "5",
        "s3.request-timeout": "60",
    }
    if address.endpoint:
        found["s3.endpoint"] = address.endpoint
    if keys.session_token:
        found["s3.session-token"] = keys.session_token
    return found


def open_target(catalog_url: str, warehouse_url: str, credentials: Credentials | None = None) -> IcebergTarget:
    """The table `episodes` derived from the catalog at `catalog_url` (libpq's URL, see `Catalog.libpq_url`)."""
    with ChangeReader(catalog_url) as reader:
        owner = reader.identity()
    return IcebergTarget(open_sql_catalog(catalog_url, warehouse_url, credentials), owner)


class IcebergTarget:
    """The Iceberg table `episodes`, appended to.

    Args:
        catalog: pyiceberg's, see `open_sql_catalog`.
        owner: Identity of the catalog it is derived from; a table of another one is refused.
        table: Its full name.
    """

    def __init__(self, catalog: SqlCatalog, owner: str, *, table: str = EPISODES_TABLE) -> None:
        self._catalog = catalog
        self._owner = owner
        self._name = table
        self._table: Table | None = None

    def table(self) -> Table:
        """The table as it is now; made if it is not there.

        Raises:
            StateError: It is derived from another catalog.
        """
        with _iceberg_errors(self._name):
            if self._table is None:
                self._table = self._open()
            else:
                self._table.refresh()
            return self._table

    def _open(self) -> Table:
        from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

        try:
            table = self._catalog.load_table(self._name)
        except NoSuchTableError:
            self._catalog.create_namespace_if_not_exists(self._name.rpartition(".")[0])
            try:
                table = self._catalog.create_table(self._name, iceberg_schema(), properties=self._properties())
            except TableAlreadyExistsError:
                table = self._catalog.load_table(self._name)
        owner = table.properties.get(_OWNER)
        if owner != self._owner:
            raise StateError(
                f"table {self._name} is derived from catalog {owner}, not from {self._owner}: another warehouse URL?"
            )
        known = {field.name for field in table.schema().fields}
        if further := [field for field in iceberg_schema().fields if field.name not in known]:
            # Rows of before have none of it, so in a table that exists they are never required.
            with table.update_schema() as update:
                for field in further:
                    update.add_column(field.name, field.field_type, doc=field.doc)
        return table

    def _properties(self) -> dict[str, str]:
        return {
            _OWNER: self._owner,
            "format-version": "2",
            # A retry inside pyiceberg would put our rows behind another exporter's; we look first.
            "commit.retry.num-retries": "0",
            "write.parquet.compression-codec": "zstd",
            "write.parquet.compression-level": "1",
            "write.parquet.row-group-limit": str(_ROW_GROUP_ROWS),
            "write.parquet.dict-size-bytes": str(_DICTIONARY_BYTES),
            "write.target-file-size-bytes": str(_FILE_BYTES),
            "write.metadata.previous-versions-max": "50",
            "write.metadata.delete-after-commit.enabled": "true",
        }

    def watermark(self) -> Watermark | None:
        """From the newest snapshot that carries one; compaction and tags may lie above it."""
        table = self.table()
        snapshot = table.current_snapshot()
        while snapshot is not None:
            summary = snapshot.summary
            found = Watermark.from_properties(dict(summary.additional_properties)) if summary else None
            if found is not None:
                return found
            parent = snapshot.parent_snapshot_id
            snapshot = None if parent is None else table.snapshot_by_id(parent)
        return None

    def append(
        self,
        batches: Iterable[pa.RecordBatch],
        watermark: Watermark,
        *,
        after: Watermark | None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        """One Iceberg snapshot with rows and watermark; see `ExportTarget.append`."""
        import pyarrow as pa
        from pyiceberg.exceptions import CommitFailedException

        found = self.watermark()
        if found != after:
            raise ConflictError(f"table {self._name} stands at {found}, not at {after}: another exporter was here")
        counted = _Counted(batches)
        first = next(counted, None)
        if first is None:
            return 0
        # The schema of the batches itself: field order and types are checked by pyiceberg against the table's.
        reader = pa.RecordBatchReader.from_batches(arrow_schema(), _chain(first, counted))
        table = self._table
        assert table is not None  # noqa: S101 - watermark() opened it
        with _iceberg_errors(self._name):
            transaction = table.transaction()
            transaction.append(reader, snapshot_properties=watermark.properties())
            if before_commit is not None:
                before_commit()
            try:
                transaction.commit_transaction()
            except CommitFailedException as exc:
                self._table = None
                now = self.watermark()
                if now != watermark:  # else it landed, and only the answer was lost
                    raise ConflictError(f"table {self._name} moved to {now} while this export was written") from exc
        return counted.rows

    def root(self) -> str:
        """URL or folder of the warehouse that the table's files lie under."""
        return str(self._catalog.properties["warehouse"])

    def location(self) -> str:
        """URL of the table's newest metadata file, for engines that open it by that."""
        return self.table().metadata_location

    def scan(self, columns: tuple[str, ...]) -> pa.RecordBatchReader:
        """All rows of the newest snapshot, superseded ones too; for reconciliation, not for queries."""
        with _iceberg_errors(self._name):
            return self.table().scan(selected_fields=columns).to_arrow_batch_reader()


class _Counted:
    """Counts the rows that pass."""

    def __init__(self, batches: Iterable[pa.RecordBatch]) -> None:
        self._batches = iter(batches)
        self.rows = 0

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = next(self._batches)
            if batch.num_rows:
                self.rows += batch.num_rows
                return batch


def _chain(first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield first
    yield from rest


@contextlib.contextmanager
def _iceberg_errors(table: str) -> Iterator[None]:
    """Errors of pyiceberg, its database and its files, as ours."""
    from pyiceberg.exceptions import CommitStateUnknownException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except KinemillError:
        raise
    except CommitStateUnknownException as exc:
        raise UnavailableError(f"table {table}: whether the commit landed is unknown; ask for its watermark") from exc
    except (SQLAlchemyError, OSError) as exc:
        raise UnavailableError(f"table {table}: {_first_line(exc)}") from exc


def _first_line(exc: BaseException) -> str:
    return (str(exc).strip().splitlines() or [type(exc).__name__])[0][:300]
