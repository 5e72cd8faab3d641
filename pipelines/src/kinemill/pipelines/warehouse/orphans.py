"""Data files that no snapshot of the table knows: what a killed export leaves behind. Found, and removed."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kinemill.errors import StateError, UsageError
from kinemill.pipelines.warehouse.export import only_exporter

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.pipelines.catalog.api import Catalog
    from kinemill.pipelines.warehouse.target import IcebergTarget

__all__ = ["GRACE_S", "OrphanReport", "drop_orphans"]

GRACE_S = 24 * 3600.0
"""Longer than any export takes: a file that is being written is known to no snapshot either."""
_GRACE_MIN_S = 3600.0
"""Below it, a store's clock that differs from ours could make a new file look old."""


@dataclass(frozen=True, slots=True)
class OrphanReport:
    """What was found, and whether it went."""

    referenced: int
    """Data files that snapshots of the table name."""
    orphans: tuple[str, ...]
    """Keys in the warehouse's store."""
    size_bytes: int
    too_young: int
    """Known to no snapshot, but younger than the grace: left alone."""
    deleted: bool


def drop_orphans(
    catalog: Catalog,
    target: IcebergTarget,
    store: Store,
    *,
    grace_s: float = GRACE_S,
    delete: bool = False,
    now_ns: int | None = None,
) -> OrphanReport:
    """Find the data files that no snapshot names and that are older than the grace; remove them if `delete`.

    No export runs meanwhile. All snapshots count, tagged and old ones too; files of metadata are left alone, pyiceberg
    removes those itself.

    Args:
        catalog: Whose export is kept out.
        target: The table.
        store: At the warehouse's URL.
        grace_s: Seconds since a file was written, an hour or more.
        delete: Else they are only told.
        now_ns: The time; default: this machine's.

    Raises:
        ConflictError: An export is at work.
        StateError: A file that the table needs was not found in the listing. Then names do not compare as thought, or
            the store's listing lies; nothing is removed.
    """
    if grace_s < _GRACE_MIN_S:
        raise UsageError(f"a grace of {grace_s:g} s is too short: {_GRACE_MIN_S:g} or more")
    with only_exporter(catalog):
        table = target.table()
        known = {_path(str(file)) for file in table.inspect.all_data_files()["file_path"].to_pylist()}
        root, folder = _path(target.root()), _path(table.location())
        if not folder.startswith(f"{root}/"):
            raise StateError(f"table at {table.location()} does not lie in the warehouse {target.root()}")
        prefix = f"{folder[len(root) + 1 :]}/data/"
        found = {f"{root}/{meta.key}": meta for meta in store.list(prefix)}
        if missing := known - found.keys():
            raise StateError(
                f"{len(missing)} of {len(known)} data files of the table are not in {store.url}, the first is"
                f" {min(missing)}: is this the store of that warehouse? Nothing was removed"
            )
        border = (time.time_ns() if now_ns is None else now_ns) - int(grace_s * 1e9)
        unknown = [meta for name, meta in sorted(found.items()) if name not in known]
        old = [meta for meta in unknown if meta.modified_ns is not None and meta.modified_ns < border]
        if delete:
            for meta in old:
                store.delete(meta.key)
    return OrphanReport(
        referenced=len(known),
        orphans=tuple(meta.key for meta in old),
        size_bytes=sum(meta.size_bytes for meta in old),
        too_young=len(unknown) - len(old),
        deleted=delete and bool(old),
    )


def _path(url: str) -> str:
    """Bucket and key, or the path of a file: the part that is the same however a URL is written."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return unquote(parts.path) if parts.scheme else url
    return f"{parts.netloc}{parts.path}".rstrip("/")
