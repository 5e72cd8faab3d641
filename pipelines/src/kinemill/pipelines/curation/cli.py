"""`kinemill manifest`: plan, build, compare and show manifests."""

from __future__ import annotations

import getpass
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import click

from kinemill.contracts import ExitCode, Store
from kinemill.errors import CorruptError, UsageError
from kinemill.pipelines.parts import answer, open_catalog, open_corpus, open_warehouse, options, settings_of

__all__ = ["manifest"]


@click.group()
def manifest() -> None:
    """Plan, build and compare manifests.

    Example: kinemill manifest build reach.yaml
    """


_SPEC = click.argument("spec_path", metavar="SPEC", type=click.Path(path_type=Path))
_AT = click.option("--at", "snapshot", type=int, help="Warehouse snapshot; the newest if not given.")


@manifest.command()
@_SPEC
@_AT
@options("catalog", "warehouse", "json")
def plan(
    spec_path: Path, snapshot: int | None, catalog_url: str | None, warehouse_url: str | None, as_json: bool
) -> None:
    """Show what a build of SPEC would hold; nothing is written.

    \b
    Exit: 0 shown, 1 no episode meets the spec, 78 the spec is wrong.
    Example: kinemill manifest plan reach.yaml --json
    """
    from kinemill.pipelines.curation import load_spec, plan_manifest

    spec = load_spec(spec_path)
    settings = settings_of(catalog_url=catalog_url, warehouse_url=warehouse_url)
    with open_catalog(settings) as catalog, open_warehouse(settings, catalog, snapshot) as warehouse:
        found = plan_manifest(spec, warehouse)

    def lines() -> Iterator[str]:
        yield f"{found.id} at snapshot {found.snapshot_id}"
        yield f"  {found.rows} episodes, {found.hours:.3f} h, {found.corpus_bytes / 1e9:.3f} GB, {found.frames} frames"
        for what, counts in (("split", found.splits), ("vendor", found.vendors)):
            for name, rows in counts.items():
                yield f"  {what} {name}: {rows}"
        if found.without_cameras:
            yield f"  {found.without_cameras} episodes have no cameras"

    answer(found, lines, as_json=as_json)
    click.get_current_context().exit(ExitCode.OK if found.rows else ExitCode.FINDING)


@manifest.command()
@_SPEC
@_AT
@click.option("--parquet", is_flag=True, help="Also as Parquet, for loaders with manifest.mode = remote_parquet.")
@options("catalog", "store", "warehouse", "json")
def build(
    *,
    spec_path: Path,
    snapshot: int | None,
    parquet: bool,
    catalog_url: str | None,
    store_url: str | None,
    warehouse_url: str | None,
    as_json: bool,
) -> None:
    """Build SPEC into a manifest in the store. The same spec and snapshot give the same manifest.

    \b
    Exit: 0 built (or found built), 1 no episode meets the spec, 75 try again, 78 the spec is wrong.
    Example: kinemill manifest build reach.yaml --at 4523
    """
    from kinemill.pipelines.curation import build_manifest, load_spec

    spec = load_spec(spec_path)
    settings = settings_of(catalog_url=catalog_url, store_url=store_url, warehouse_url=warehouse_url)
    store = open_corpus(settings)
    with open_catalog(settings) as catalog, open_warehouse(settings, catalog, snapshot) as warehouse:
        built = build_manifest(
            spec,
            warehouse,
            store=store,
            catalog=catalog,
            spec_text=spec_path.read_text(encoding="utf-8"),
            creator=_me(),
            parquet=parquet,
        )

    def lines() -> Iterator[str]:
        package = built.package
        yield f"{package.id}: {'built' if built.new else 'was built before'}"
        yield f"  {package.rows} rows, {package.hours:.3f} h, splits {package.splits}"
        yield f"  {store.url}/{package.key} ({package.size_bytes} bytes)"

    answer(built, lines, as_json=as_json)


def _me() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


@manifest.command()
@click.argument("manifest_id", metavar="ID", required=False)
@click.option("--check", is_flag=True, help="Fetch the file and compare its sha256.")
@options("store", "json")
def show(manifest_id: str | None, check: bool, store_url: str | None, as_json: bool) -> None:
    """Show manifest ID, or list all of them.

    \b
    Exit: 0 shown, 1 no such manifest, or it is damaged.
    Example: kinemill manifest show reach-98e1f131d4ada253 --check
    """
    from kinemill.manifest import find_manifest, list_manifests

    store = open_corpus(settings_of(store_url=store_url))
    if manifest_id is None:
        found = list(list_manifests(store))
        answer(found, lambda: (f"{p.id:<40} {p.rows:>10} rows {p.hours:>10.3f} h" for p in found), as_json=as_json)
        return
    package = find_manifest(store, manifest_id)
    metadata: dict[str, str] = {}
    if check:
        from kinemill.manifest import ManifestFile

        with ExitStack() as stack:
            path = _fetched(store, manifest_id, stack)
            metadata = stack.enter_context(ManifestFile(path)).metadata
    data = {"package": package, "metadata": metadata}

    def lines() -> Iterator[str]:
        size = package.corpus_bytes / 1e9
        yield f"{package.id}: {package.rows} rows, {package.hours:.3f} h, {size:.3f} GB of objects"
        yield f"  snapshot {package.snapshot_id}, seed {package.seed}, spec {package.spec_key}"
        yield f"  splits {package.splits}, vendors {package.vendors}"
        yield f"  {package.key} ({package.size_bytes} bytes){', sha256 is right' if check else ''}"

    answer(data, lines, as_json=as_json)


@manifest.command()
@click.argument("manifest_id", metavar="ID")
@click.option(
    "--to", "target", type=click.Path(path_type=Path), help="A local file; else beside the manifest in the store."
)
@options("store", "json")
def export(manifest_id: str, target: Path | None, store_url: str | None, as_json: bool) -> None:
    """Write manifest ID as Parquet: beside it, for `manifest.mode = remote_parquet`, or to a local file.

    \b
    Exit: 0 written (or found written), 1 no such manifest, or it is damaged, 2 the local file exists.
    Example: kinemill manifest export reach-98e1f131d4ada253
    """
    from kinemill.manifest import find_manifest, publish_parquet, write_parquet

    store = open_corpus(settings_of(store_url=store_url))
    package = find_manifest(store, manifest_id)
    with ExitStack() as stack:
        path = _fetched(store, manifest_id, stack)
        if target is None:
            where = f"{store.url}/{publish_parquet(store, package, path)}"
        elif target.exists():
            raise UsageError(f"{target} exists; name a new file")
        else:
            part = target.with_name(f".{target.name}.{os.getpid()}.part")
            try:
                write_parquet(path, part, sha256=package.sha256)
                part.replace(target)
            finally:
                part.unlink(missing_ok=True)
            where = str(target)
    answer(
        {"id": package.id, "rows": package.rows, "parquet": where},
        lambda: iter([f"{where}: {package.rows} rows"]),
        as_json=as_json,
    )


@manifest.command()
@click.argument("old_id", metavar="OLD")
@click.argument("new_id", metavar="NEW")
@options("store", "json")
def diff(old_id: str, new_id: str, store_url: str | None, as_json: bool) -> None:
    """Count rows that differ from manifest OLD to manifest NEW.

    \b
    Exit: 0 no difference, 1 some.
    Example: kinemill manifest diff reach-98e1f131d4ada253 reach-0c4d5ee1a2b3c4d5
    """
    from kinemill.pipelines.curation import diff_manifests

    store = open_corpus(settings_of(store_url=store_url))
    with ExitStack() as stack:
        found = diff_manifests(_fetched(store, old_id, stack), _fetched(store, new_id, stack))

    def lines() -> Iterator[str]:
        yield f"added {found.added}, removed {found.removed}, corrected {found.corrected}"
        yield f"reweighted {found.reweighted}, moved to another split {found.moved}, same {found.same}"

    answer(found, lines, as_json=as_json)
    changed = found.added + found.removed + found.corrected + found.reweighted + found.moved
    click.get_current_context().exit(ExitCode.FINDING if changed else ExitCode.OK)


def _fetched(store: Store, manifest_id: str, stack: ExitStack) -> Path:
    """The manifest's file in a temporary folder, its sha256 checked."""
    import hashlib

    from kinemill.manifest import find_manifest

    package = find_manifest(store, manifest_id)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kinemill-manifest-")))
    path = folder / "manifest.arrow"
    store.download(package.key, path, size_bytes=package.size_bytes)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != package.sha256:
        raise CorruptError(f"{store.url}/{package.key}: sha256 {digest[:12]}..., expected {package.sha256[:12]}...")
    return path
