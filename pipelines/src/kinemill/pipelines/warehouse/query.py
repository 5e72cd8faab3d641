"""DuckDB over the warehouse's Iceberg metadata file: one machine's query engine, offline.

pyiceberg plans and commits; it never scans for curation. The extensions come from wheels, so nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from kinemill.errors import (
    ConfigError,
    ExternalError,
    LimitError,
    MissingToolError,
    NotFoundError,
    UnavailableError,
    UsageError,
)

if TYPE_CHECKING:
    import duckdb

    from kinemill.pipelines.warehouse.target import IcebergTarget
    from kinemill.store.config import Credentials

__all__ = ["Warehouse", "extension_path"]

MEMORY_LIMIT = "4GB"


def extension_path(name: str) -> Path:
    """The DuckDB extension `name` inside its wheel.

    Raises:
        MissingToolError: The wheel is not installed, or is for another DuckDB.
    """
    import importlib.util

    import duckdb

    found = importlib.util.find_spec(f"duckdb_extension_{name}")
    if found is None or not found.submodule_search_locations:
        raise MissingToolError(f"the package duckdb-extension-{name} is not installed: install kinemill-pipelines anew")
    for folder in found.submodule_search_locations:
        for path in sorted(Path(folder).rglob(f"{name}.duckdb_extension")):
            if f"v{duckdb.__version__}" in path.parts:
                return path
    raise MissingToolError(
        f"duckdb-extension-{name} has no extension for DuckDB {duckdb.__version__}: the versions have to be the same"
    )


@dataclass(frozen=True, slots=True)
class _S3:
    endpoint: str
    region: str
    path_style: bool
    ssl: bool


class Warehouse:
    """The warehouse table at one snapshot, for queries; a context manager.

    Args:
        metadata_location: URL or path of the Iceberg metadata file.
        snapshot_id: Which snapshot; the newest where None.
        warehouse_url: The URL that the table's files lie under, for endpoint and region of S3.
        credentials: For S3; from the environment where None.
        memory_limit: DuckDB's; beyond it, it spills to its temporary folder.

    Raises:
        NotFoundError: The table has no snapshot yet, or not that one.
    """

    def __init__(
        self,
        metadata_location: str,
        *,
        snapshot_id: int | None = None,
        warehouse_url: str = "",
        credentials: Credentials | None = None,
        memory_limit: str = MEMORY_LIMIT,
    ) -> None:
        import duckdb

        self.location = metadata_location
        self._connection: duckdb.DuckDBPyConnection = duckdb.connect(
            ":memory:", config={"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
        )
        try:
            self._prepare(warehouse_url, credentials, memory_limit)
            self.snapshot_id = self._snapshot(snapshot_id)
        except BaseException:
            self._connection.close()
            raise

    @classmethod
    def of(
        cls,
        target: IcebergTarget,
        *,
        snapshot_id: int | None = None,
        warehouse_url: str = "",
        credentials: Credentials | None = None,
    ) -> Self:
        """The warehouse that an export target writes."""
        return cls(target.location(), snapshot_id=snapshot_id, warehouse_url=warehouse_url, credentials=credentials)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the engine."""
        self._connection.close()

    def _prepare(self, warehouse_url: str, credentials: Credentials | None, memory_limit: str) -> None:
        run = self._connection.execute
        run("set memory_limit = $1", [memory_limit])
        run("set timezone = 'UTC'")
        for name in ("avro", "httpfs", "iceberg"):
            with _duck_errors(f"loading DuckDB's extension {name}"):
                self._connection.load_extension(str(extension_path(name)))
        if urlsplit(self.location).scheme in ("s3", "s3a"):
            self._secret(warehouse_url, credentials)

    def _secret(self, warehouse_url: str, credentials: Credentials | None) -> None:
        from kinemill.store.config import Credentials, parse_s3_url

        if not warehouse_url:
            raise ConfigError("a warehouse on S3 needs its URL, for endpoint and region")
        address = parse_s3_url(warehouse_url)
        keys = credentials or Credentials.find()
        values = {
            "key_id": keys.access_key,
            "secret": keys.secret_key,
            "region": address.region,
            "url_style": "vhost" if address.style == "host" else "path",
        }
        if keys.session_token:
            values["session_token"] = keys.session_token
        if address.endpoint:
            parts = urlsplit(address.endpoint)
            values["endpoint"] = parts.netloc
            values["use_ssl"] = "true" if parts.scheme == "https" else "false"
        listed = ", ".join(f"{k} '{v.replace(chr(39), chr(39) * 2)}'" for k, v in values.items())
        with _duck_errors("the warehouse's S3 secret", hide=True):
            self._connection.execute(f"create secret warehouse (type s3, {listed})")

    def _snapshot(self, wanted: int | None) -> int:
        with _duck_errors(f"the warehouse table at {self.location}"):
            found = self._connection.execute(
                "select snapshot_id from iceberg_snapshots($1) order by sequence_number", [self.location]
            ).fetchall()
        known = [int(row[0]) for row in found]
        if not known:
            raise NotFoundError("the warehouse is empty: run `kinemill warehouse sync` first")
        if wanted is not None and wanted not in known:
            raise NotFoundError(f"the warehouse has no snapshot {wanted}; the newest is {known[-1]}")
        return known[-1] if wanted is None else wanted

    @property
    def table(self) -> str:
        """The table at the snapshot, as a DuckDB expression."""
        place = self.location.replace("'", "''")
        return f"iceberg_scan('{place}', snapshot_from_id = {self.snapshot_id})"

    def query(self, sql: str, *, batch_rows: int = 1 << 16) -> Any:
        """Run one statement; returns an Arrow `RecordBatchReader`, to be read before the next call."""
        with _duck_errors("the query"):
            return self._connection.execute(sql).to_arrow_reader(batch_rows)

    def execute(self, sql: str) -> None:
        """Run one statement for its effect (temporary tables)."""
        with _duck_errors("the query"):
            self._connection.execute(sql)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Run one statement; all its rows, for small results."""
        with _duck_errors("the query"):
            return self._connection.execute(sql).fetchall()

    def names(self) -> list[str]:
        """Column names of the last result."""
        return [d[0] for d in self._connection.description or []]

    def person(self, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """What a person typed: one SELECT over `episodes` (current rows) and `versions` (all of them).

        The engine's access to files and to its own settings is shut before it runs.

        Raises:
            UsageError: Not exactly one SELECT, or one that is wrong.
        """
        import duckdb

        try:
            statements = self._connection.extract_statements(sql)
        except duckdb.Error as exc:
            raise UsageError(f"the query: {_first(exc)}") from exc
        if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError("one SELECT statement only: the warehouse is derived, nothing is changed in it")
        from kinemill.pipelines.warehouse.schema import CURRENT_SQL

        self.execute(f"create temp table versions as select * from {self.table}")  # noqa: S608 - our own table
        self.execute(f"create temp view episodes as {CURRENT_SQL.format(table='versions')}")
        self.execute("set enable_external_access = false")
        self.execute("set lock_configuration = true")
        try:
            result = self._connection.execute(statements[0])
            return [d[0] for d in result.description or []], result.fetchall()
        except duckdb.Error as exc:
            raise UsageError(f"the query: {_first(exc)}") from exc


@contextmanager
def _duck_errors(what: str, *, hide: bool = False) -> Iterator[None]:
    import duckdb

    try:
        yield
    except duckdb.OutOfMemoryException as exc:
        raise LimitError(f"{what}: more memory than {MEMORY_LIMIT} was needed ({_first(exc)})") from exc
    except (duckdb.IOException, duckdb.HTTPException) as exc:
        raise UnavailableError(f"{what}: {'' if hide else _first(exc)}") from (None if hide else exc)
    except duckdb.Error as exc:
        raise ExternalError(f"{what}: {'refused' if hide else _first(exc)}") from (None if hide else exc)


def _first(exc: BaseException) -> str:
    return re.sub(r"\s+", " ", str(exc))[:400]
