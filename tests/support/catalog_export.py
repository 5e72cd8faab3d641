"""What tests of the export share: a warehouse of its own for each, and a target in memory."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from kinemill.errors import ConflictError
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.warehouse.export import Exporter
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.reconcile import reconcile
from kinemill.pipelines.warehouse.target import IcebergTarget, open_sql_catalog
from kinemill.pipelines.warehouse.watermark import Watermark
from kinemill.store.embedded import S3Server
from support.catalog import pair

_numbers = itertools.count()


class ListTarget:
    """`ExportTarget` in memory; the fake that the exporter's own logic is tested with."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.stand: Watermark | None = None

    def watermark(self) -> Watermark | None:
        return self.stand

    def append(
        self,
        batches: Iterable[pa.RecordBatch],
        watermark: Watermark,
        *,
        after: Watermark | None,
        before_commit: Callable[[], None] | None = None,
    ) -> int:
        if self.stand != after:
            raise ConflictError("another exporter was here")
        rows = [row for batch in batches for row in batch.to_pylist()]
        if before_commit:
            before_commit()
        self.rows += rows
        self.stand = watermark
        return len(rows)


class Place:
    """A warehouse of its own for one test."""

    def __init__(self, catalog: Catalog, s3: S3Server) -> None:
        self.catalog = catalog
        self.s3 = s3
        self.tables: dict[str, SqlCatalog] = {}
        self.move()

    def move(self) -> None:
        """To a warehouse that nobody has seen yet."""
        self.url = self.s3.url_of(f"warehouse-{os.getpid()}-{next(_numbers)}")

    def target(self) -> IcebergTarget:
        """A new one, as another process would have."""
        with ChangeReader(self.catalog.libpq_url) as reader:
            owner = reader.identity()
        if self.url not in self.tables:
            self.tables[self.url] = open_sql_catalog(self.catalog.libpq_url, self.url, self.s3.credentials)
        return IcebergTarget(self.tables[self.url], owner)

    def export(self, **more: Any) -> int:
        return Exporter(self.catalog, self.target(), **more).run().rows

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.target().table().scan().to_arrow().to_pylist()
        return found

    def current(self) -> dict[tuple[bytes, str], dict[str, Any]]:
        """Newest row by rendition."""
        newest: dict[tuple[bytes, str], dict[str, Any]] = {}
        for row in sorted(self.rows(), key=lambda row: row["seq"]):
            newest[row["episode_id"], row["profile"]] = row
        return newest

    def agrees(self) -> bool:
        report = reconcile(self.catalog, self.target())
        assert report.pending == 0, report
        return report.ok


def ingest(catalog: Catalog, count: int = 3, **more: object) -> list[str]:
    return [done.episode_id for done in catalog.register_episodes([pair(**more) for _ in range(count)])]
