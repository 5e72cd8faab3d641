"""What several commands open: catalog, store, warehouse; and how they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from kinemill.errors import ConfigError
from kinemill.pipelines.settings import PipelineSettings
from kinemill.records import dumps
from kinemill.settings import load_settings

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.pipelines.catalog.api import Catalog
    from kinemill.pipelines.warehouse.query import Warehouse
    from kinemill.pipelines.warehouse.target import IcebergTarget

__all__ = ["answer", "open_catalog", "open_corpus", "open_iceberg", "open_warehouse", "options", "settings_of"]

F = TypeVar("F", bound=Callable[..., Any])


def options(*names: str) -> Callable[[F], F]:
    """The shared options of those names: `catalog`, `store`, `warehouse`, `work_dir`, `json`."""
    known: dict[str, Callable[[F], F]] = {
        "catalog": click.option(
            "--catalog", "catalog_url", help="Catalog URL without a password; else $KINEMILL_CATALOG_URL."
        ),
        "store": click.option("--store", "store_url", help="Store URL of the corpus; else $KINEMILL_STORE_URL."),
        "warehouse": click.option("--warehouse", "warehouse_url", help="Warehouse URL; else $KINEMILL_WAREHOUSE_URL."),
        "work_dir": click.option(
            "--work-dir", type=click.Path(path_type=Path), help="Scratch folder; else $KINEMILL_INGEST_DIR."
        ),
        "json": click.option("--json", "as_json", is_flag=True, help="One JSON object on standard output."),
    }

    def wrap(command: F) -> F:
        for name in reversed(names):
            command = known[name](command)
        return command

    return wrap


def settings_of(**overrides: Any) -> PipelineSettings:
    """Settings from file, environment and the options that were given."""
    return load_settings(PipelineSettings, plane="pipelines", overrides=overrides).value


def _needed(value: str, what: str, option: str, variable: str) -> str:
    if not value:
        raise ConfigError(f"no {what} is set: give {option}, or set ${variable}")
    return value


@contextmanager
def open_catalog(settings: PipelineSettings) -> Iterator[Catalog]:
    """The catalog.

    Raises:
        ConfigError: None is set.
    """
    from kinemill.pipelines.catalog.api import Catalog

    with Catalog(_needed(settings.catalog_url, "catalog", "--catalog", "KINEMILL_CATALOG_URL")) as catalog:
        yield catalog


def open_corpus(settings: PipelineSettings) -> Store:
    """The store of the corpus.

    Raises:
        ConfigError: None is set.
    """
    from kinemill.store import open_store

    return open_store(_needed(settings.store_url, "store", "--store", "KINEMILL_STORE_URL"))


@contextmanager
def open_iceberg(settings: PipelineSettings, catalog: Catalog) -> Iterator[IcebergTarget]:
    """The warehouse as the export writes it."""
    from kinemill.pipelines.warehouse.read import ChangeReader
    from kinemill.pipelines.warehouse.target import IcebergTarget, open_sql_catalog

    url = _needed(settings.warehouse_url, "warehouse", "--warehouse", "KINEMILL_WAREHOUSE_URL")
    with ChangeReader(catalog.libpq_url) as reader:
        owner = reader.identity()
    with closing(open_sql_catalog(catalog.libpq_url, url)) as tables:
        yield IcebergTarget(tables, owner)


@contextmanager
def open_warehouse(settings: PipelineSettings, catalog: Catalog, snapshot_id: int | None = None) -> Iterator[Warehouse]:
    """The warehouse for queries, at a snapshot."""
    from kinemill.pipelines.warehouse.query import Warehouse

    with (
        open_iceberg(settings, catalog) as target,
        Warehouse.of(target, snapshot_id=snapshot_id, warehouse_url=settings.warehouse_url) as warehouse,
    ):
        yield warehouse


def answer(value: object, lines: Callable[[], Iterator[str]], *, as_json: bool) -> None:
    """Print a result: one JSON object, or lines for a person."""
    if as_json:
        click.echo(dumps(value))
        return
    for line in lines():
        click.echo(line)
