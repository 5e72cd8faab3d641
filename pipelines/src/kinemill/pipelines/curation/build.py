"""From a spec and a snapshot to a published manifest: the same rows, the same bytes, each time."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinemill import records
from kinemill.contracts import MANIFEST_COLUMNS, Store
from kinemill.errors import DataError
from kinemill.manifest import ManifestPackage, ManifestWriter, dictionary_fields, publish_manifest, publish_parquet
from kinemill.pipelines.curation.extras import put_layouts, statistics_text
from kinemill.pipelines.curation.spec import CurationSpec
from kinemill.pipelines.curation.sql import CODE_VERSION, chosen_sql
from kinemill.pipelines.warehouse.query import Warehouse

if TYPE_CHECKING:
    from kinemill.pipelines.catalog.api import Catalog

__all__ = ["BuiltManifest", "ManifestPlan", "build_manifest", "manifest_id", "plan_manifest"]

_PLAIN = [c.name for c in MANIFEST_COLUMNS]


@dataclass(frozen=True, slots=True)
class ManifestPlan:
    """What a build would hold, without building it."""

    id: str
    snapshot_id: int
    rows: int
    hours: float
    corpus_bytes: int
    frames: int
    splits: dict[str, int] = field(default_factory=dict)
    vendors: dict[str, int] = field(default_factory=dict)
    without_cameras: int = 0
    """Rows that a job which needs pictures will skip."""


@dataclass(frozen=True, slots=True)
class BuiltManifest:
    """A published manifest."""

    package: ManifestPackage
    plan: ManifestPlan
    new: bool
    """False where it had been built and recorded before."""


def manifest_id(spec: CurationSpec, snapshot_id: int) -> str:
    """`<name>-<16 hex digits>`, from everything that decides the bytes."""
    what = records.dumps({"spec": spec.sha256, "snapshot": snapshot_id, "code": CODE_VERSION})
    return f"{spec.name}-{hashlib.sha256(what.encode()).hexdigest()[:16]}"


def plan_manifest(spec: CurationSpec, warehouse: Warehouse) -> ManifestPlan:
    """Count what a build would hold.

    Raises:
        UnavailableError: The warehouse cannot be read.
    """
    _choose(spec, warehouse)
    return _plan(spec, warehouse)


def build_manifest(
    spec: CurationSpec,
    warehouse: Warehouse,
    *,
    store: Store,
    catalog: Catalog | None = None,
    spec_text: str = "",
    work_dir: Path | None = None,
    creator: str = "",
    parquet: bool = False,
) -> BuiltManifest:
    """Build, publish and record a manifest.

    Killed at any point, the same call ends with the same manifest: the file is put under its content's name,
    `manifest.json` last and only once, the catalog's row after that.

    Args:
        spec: What to take.
        warehouse: The table at a snapshot.
        store: Where the manifest goes: the corpus that it points into.
        catalog: Notes the manifest and which episodes it holds; None skips that.
        spec_text: The spec as its author wrote it, kept beside the manifest.
        work_dir: For the file before it is uploaded.
        creator: Who asked for it.
        parquet: Also put the rows as Parquet beside the file, for `manifest.mode = remote_parquet`.

    Raises:
        DataError: No episode meets the spec, or one that statistics or a sidecar are taken from is damaged.
        LimitError: More different words in a column than a manifest has room for.
        UnavailableError: Warehouse, store or catalog is gone; call again.
    """
    _choose(spec, warehouse)
    plan = _plan(spec, warehouse)
    if plan.rows == 0:
        raise DataError(f"spec '{spec.name}': no published episode of profile '{spec.profile}' meets its filters")
    words = {
        name: [str(row[0]) for row in warehouse.rows(f"select distinct {name} from chosen")]  # noqa: S608 - a constant
        for name in dictionary_fields()
    }
    metadata = {
        "id": plan.id,
        "name": spec.name,
        "spec_sha256": spec.sha256,
        "snapshot_id": str(plan.snapshot_id),
        "seed": str(spec.seed),
        "code_version": CODE_VERSION,
        "rows": str(plan.rows),
        "hours": f"{plan.hours:.6f}",
        "profile": spec.profile,
        "splits": records.dumps(plan.splits),
        "layouts": spec.layouts,
    }
    if statistics := statistics_text(store, warehouse, spec.statistics_episodes):
        metadata["statistics"] = statistics
    if spec.layouts == "sidecar":
        put_layouts(store, warehouse)
    with tempfile.TemporaryDirectory(prefix="kinemill-manifest-", dir=work_dir) as folder:
        path = Path(folder) / "manifest.arrow"
        with ManifestWriter(path, words, metadata=metadata) as writer:
            for batch in _ordered(warehouse, spec):
                writer.add(batch)
        written = writer.close()
        info = ManifestPackage(
            id=plan.id,
            name=spec.name,
            spec_sha256=spec.sha256,
            snapshot_id=plan.snapshot_id,
            seed=spec.seed,
            code_version=CODE_VERSION,
            hours=plan.hours,
            corpus_bytes=plan.corpus_bytes,
            splits=plan.splits,
            vendors=plan.vendors,
        )
        package = publish_manifest(store, written, info, spec=spec_text or records.dumps(spec, indent=2) + "\n")
        if parquet:
            publish_parquet(store, package, path)
    new = _record(catalog, package, warehouse, creator) if catalog is not None else True
    return BuiltManifest(replace(package), plan, new)


def _choose(spec: CurationSpec, warehouse: Warehouse) -> None:
    """The rows of the manifest as a temporary table, on disk where memory does not hold them."""
    warehouse.execute(f"create or replace temp table chosen as {chosen_sql(spec, warehouse.table)}")


def _plan(spec: CurationSpec, warehouse: Warehouse) -> ManifestPlan:
    ((rows, nanos, size, frames, blind),) = warehouse.rows(
        "select count(*), coalesce(sum(duration_ns), 0), coalesce(sum(size_bytes), 0), coalesce(sum(frames), 0), "
        "count(*) filter (where frames = 0) from chosen"
    )
    splits, vendors = (
        {str(k): int(v) for k, v in warehouse.rows(f"select {c}, count(*) from chosen group by 1 order by 1")}  # noqa: S608
        for c in ("split", "vendor")
    )
    return ManifestPlan(
        id=manifest_id(spec, warehouse.snapshot_id),
        snapshot_id=warehouse.snapshot_id,
        rows=int(rows),
        hours=round(int(nanos) / 3.6e12, 6),
        corpus_bytes=int(size),
        frames=int(frames),
        splits=splits,
        vendors=vendors,
        without_cameras=int(blind),
    )


def _ordered(warehouse: Warehouse, spec: CurationSpec) -> Iterator[Any]:
    names = ["cast(null as blob) as layout" if c == "layout" and spec.layouts == "sidecar" else c for c in _PLAIN]
    yield from warehouse.query(f"select {', '.join(names)} from chosen order by order_key, episode_id")  # noqa: S608


def _record(catalog: Catalog, package: ManifestPackage, warehouse: Warehouse, creator: str) -> bool:
    from kinemill.pipelines.catalog.records import ManifestRecord

    record = ManifestRecord(
        id=package.id,
        object_key=package.key,
        spec_sha256=package.spec_sha256,
        sha256=package.sha256,
        snapshot_id=package.snapshot_id,
        seed=package.seed,
        rows=package.rows,
        size_bytes=package.size_bytes,
        hours=package.hours,
        creator=creator,
        details={"name": package.name, "splits": package.splits},
    )
    ids = (
        bytes(value)
        for batch in warehouse.query("select distinct episode_id from chosen")
        for value in batch.column(0).to_pylist()
    )
    return catalog.record_manifest(record, ids)
