"""`kinemill warehouse`: export the catalog's changes, see how far that came, ask in SQL."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from pathlib import Path

import click

from kinemill.pipelines.parts import answer, open_catalog, open_iceberg, open_warehouse, options, settings_of

__all__ = ["warehouse"]

_log = logging.getLogger(__name__)


@click.group()
def warehouse() -> None:
    """Sync and query the warehouse tables.

    Example: kinemill warehouse sync
    """


@warehouse.command()
@click.option(
    "--metrics",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also count the exported rows in this file of Prometheus text.",
)
@options("catalog", "warehouse", "json")
def sync(*, metrics: Path | None, catalog_url: str | None, warehouse_url: str | None, as_json: bool) -> None:
    """Export everything that changed in the catalog since the last time.

    \b
    Exit: 0 done, 1 another export is at work, 75 try again.
    Example: kinemill warehouse sync --json
    """
    from kinemill.pipelines.warehouse.export import Exporter

    if metrics is not None and not metrics.absolute().parent.is_dir():
        raise click.UsageError(f"--metrics: no folder {metrics.absolute().parent}")
    settings = settings_of(catalog_url=catalog_url, warehouse_url=warehouse_url)
    with open_catalog(settings) as catalog, open_iceberg(settings, catalog) as target:
        exporter = Exporter(catalog, target)
        try:
            report = exporter.run()
        finally:
            if metrics is not None:
                _count(metrics.absolute(), exporter.committed)

    def lines() -> Iterator[str]:
        yield f"{report.rows} rows in {report.commits} commits, {report.seconds:.1f} s"
        if report.resynced:
            yield "the catalog was new to this warehouse, or restored: all episodes were sent"

    answer(report, lines, as_json=as_json)


def _count(metrics: Path, rows: int) -> None:
    """What was exported stays so where it cannot be counted."""
    from kinemill.pipelines.warehouse.metrics import count_rows

    try:
        count_rows(metrics, rows)
    except OSError as exc:
        _log.warning("%s: %d exported rows were not counted: %s", metrics, rows, exc)


@warehouse.command()
@options("catalog", "warehouse", "json")
def status(catalog_url: str | None, warehouse_url: str | None, as_json: bool) -> None:
    """Show how far the warehouse is behind the catalog.

    \b
    Exit: 0 shown, 75 catalog or store is gone.
    Example: kinemill warehouse status
    """
    from kinemill.pipelines.warehouse.export import export_lag

    settings = settings_of(catalog_url=catalog_url, warehouse_url=warehouse_url)
    with open_catalog(settings) as catalog, open_iceberg(settings, catalog) as target:
        lag = export_lag(catalog, target.watermark())
        table = target.table()
        snapshot = table.current_snapshot()
    data = {
        "lag": lag,
        "snapshot_id": None if snapshot is None else snapshot.snapshot_id,
        "location": table.metadata_location,
    }

    def lines() -> Iterator[str]:
        yield f"{lag.rows} changes behind, the oldest {lag.seconds:.1f} s old"
        yield f"snapshot {data['snapshot_id']}, {data['location']}"
        for held in lag.held_by:
            yield f"held back by {held}"

    answer(data, lines, as_json=as_json)


@warehouse.command()
@click.option("--older-than", "hours", type=click.FloatRange(1), default=24, show_default=True, help="Hours of grace.")
@click.option("--yes", is_flag=True, help="Remove them; else they are only told.")
@options("catalog", "warehouse", "json")
def orphans(hours: float, yes: bool, catalog_url: str | None, warehouse_url: str | None, as_json: bool) -> None:
    """Find data files that no snapshot knows, as a killed export leaves them.

    \b
    Exit: 0 done, 1 an export is at work, or a file that the table needs is missing, 75 try again.
    Example: kinemill warehouse orphans --older-than 48 --yes
    """
    from kinemill.pipelines.warehouse.orphans import drop_orphans
    from kinemill.store import open_store

    settings = settings_of(catalog_url=catalog_url, warehouse_url=warehouse_url)
    with open_catalog(settings) as catalog, open_iceberg(settings, catalog) as target:
        store = open_store(settings.warehouse_url)
        report = drop_orphans(catalog, target, store, grace_s=hours * 3600, delete=yes)

    def lines() -> Iterator[str]:
        yield from report.orphans
        done = "removed" if report.deleted else "to remove with --yes" if report.orphans else "nothing to remove"
        yield f"{len(report.orphans)} files, {report.size_bytes} bytes: {done}; {report.too_young} younger ones left"

    answer(report, lines, as_json=as_json)


@warehouse.command()
@click.argument("query")
@click.option("--at", "snapshot", type=int, help="Warehouse snapshot; the newest if not given.")
@options("catalog", "warehouse", "json")
def sql(query: str, snapshot: int | None, catalog_url: str | None, warehouse_url: str | None, as_json: bool) -> None:
    """Run one SELECT over `episodes` (current rows) and `versions` (all of them).

    \b
    Exit: 0 shown, 1 the warehouse is empty, 2 the query is wrong.
    Example: kinemill warehouse sql "select vendor, count(*) from episodes group by 1"
    """
    settings = settings_of(catalog_url=catalog_url, warehouse_url=warehouse_url)
    with open_catalog(settings) as catalog, open_warehouse(settings, catalog, snapshot) as engine:
        names, rows = engine.person(query)
    cells = [[_cell(v) for v in row] for row in rows]

    def lines() -> Iterator[str]:
        widths = [max([len(n), *(len(str(r[i])) for r in cells)]) for i, n in enumerate(names)]
        table: list[list[str]] = [list(names), *([str(v) for v in row] for row in cells)]
        for row in table:
            yield "  ".join(v.ljust(w) for v, w in zip(row, widths, strict=True)).rstrip()

    answer({"columns": names, "rows": cells}, lines, as_json=as_json)


def _cell(value: object) -> str | int | float | bool | None:
    """A value that JSON has a form for."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return value.hex() if isinstance(value, bytes) else str(value)
