"""Catalog to warehouse to manifest on real servers: an S3 store, Postgres, Iceberg files in the same bucket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kinemill.cli import cli, run
from kinemill.contracts import EpisodeState, layout_key
from kinemill.errors import CorruptError, DataError, NotFoundError, UsageError
from kinemill.manifest import find_manifest, parquet_key, publish_parquet, write_parquet
from kinemill.manifest.statistics import parse_statistics
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.curation import build_manifest, diff_manifests, parse_spec, plan_manifest
from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
from kinemill.pipelines.warehouse.export import Exporter
from kinemill.pipelines.warehouse.query import Warehouse
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.target import IcebergTarget, open_sql_catalog
from kinemill.store.embedded import S3Server
from kinemill.store.s3 import S3Store
from support.catalog import fresh_catalog, postgres
from support.ingest import EPISODES, ingest, shared_drops

SPEC = """
name: reach
filters:
  - {column: task, equals: reach}
  - {column: groups, has: cameras}
splits: {train: 0.6, val: 0.4}
balance_by: vendor
"""


@dataclass
class Ground:
    """Servers with two vendors' drops in them."""

    server: S3Server
    store: S3Store
    catalog: Catalog
    target: IcebergTarget
    work: Path
    first: int = 0
    """Snapshot with the first drop alone; other tests add to what is there, and take some of it back."""

    @property
    def warehouse_url(self) -> str:
        return self.server.url_of("warehouse")

    def ingest(self, vendor: str) -> None:
        drop = shared_drops()[vendor]
        report = ingest(drop.path, vendor, self.work, store=self.store, ledger=CatalogLedger(self.catalog))
        assert report.published == EPISODES
        Exporter(self.catalog, self.target).run()

    def warehouse(self, snapshot_id: int | None = None) -> Warehouse:
        return Warehouse.of(
            self.target,
            snapshot_id=snapshot_id,
            warehouse_url=self.warehouse_url,
            credentials=self.server.credentials,
        )


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with S3Server() as server, postgres() as running, fresh_catalog(running) as catalog:
        with ChangeReader(catalog.libpq_url) as reader:
            owner = reader.identity()
        tables = open_sql_catalog(catalog.libpq_url, server.url_of("warehouse"), server.credentials)
        target = IcebergTarget(tables, owner)
        ground = Ground(server, server.store("corpus"), catalog, target, tmp_path_factory.mktemp("work"))
        ground.ingest("deskarm_lerobot")
        with ground.warehouse() as warehouse:
            ground.first = warehouse.snapshot_id
        yield ground
        tables.close()


def test_a_manifest_points_at_objects_that_are_there(ground: Ground, tmp_path: Path) -> None:
    import pyarrow as pa

    with ground.warehouse(ground.first) as warehouse:
        built = build_manifest(parse_spec(SPEC), warehouse, store=ground.store, catalog=ground.catalog)
    path = tmp_path / "m.arrow"
    ground.store.download(built.package.key, path)

    with pa.memory_map(str(path)) as mapped:
        rows = pa.ipc.open_file(mapped).read_all().to_pylist()
    assert len(rows) == built.package.rows == EPISODES
    for row in rows:
        import uuid

        episode = uuid.UUID(bytes=row["episode_id"])
        key = f"episodes/{episode.hex[-2:]}/{episode}/vla-{row['sha256'].hex()[:12]}.mcap"
        assert ground.store.head(key).size_bytes == row["size_bytes"]
        assert (row["vendor"], row["robot"], row["frames"], row["fps"]) == ("deskarm_lerobot", "planar_arm", 60, 20.0)
        assert row["weight"] == pytest.approx(1 / EPISODES)
        assert row["split"] in ("train", "val")
        assert row["layout"]
        assert '"/cam/scene"' in row["topics"]


def test_rebuilt_it_is_the_same_to_the_byte_and_recorded_once(ground: Ground) -> None:
    spec = parse_spec(SPEC)
    with ground.warehouse(ground.first) as warehouse:
        first = build_manifest(spec, warehouse, store=ground.store, catalog=ground.catalog)
    before = ground.store.get(first.package.key)

    with ground.warehouse(ground.first) as warehouse:
        warehouse.execute("set threads = 1")
        second = build_manifest(spec, warehouse, store=ground.store, catalog=ground.catalog)

    assert second.package == first.package
    assert not second.new
    assert ground.store.get(second.package.key) == before
    episode = next(e.card.episode_id for e in ground.catalog.episodes() if e.card.vendor == "deskarm_lerobot")
    assert ground.catalog.manifests_of(episode).count(first.package.id) == 1


def test_a_snapshot_stays_what_it_was_when_more_comes_in(ground: Ground, tmp_path: Path) -> None:
    spec = parse_spec(SPEC.replace("name: reach", "name: pinned"))
    with ground.warehouse() as warehouse:
        old_snapshot = warehouse.snapshot_id
        old = build_manifest(spec, warehouse, store=ground.store)
    ground.ingest("twinarm_aloha")

    with ground.warehouse(old_snapshot) as warehouse:
        again = build_manifest(spec, warehouse, store=ground.store)
    with ground.warehouse() as warehouse:
        new = build_manifest(spec, warehouse, store=ground.store, catalog=ground.catalog)

    assert again.package == old.package
    assert new.package.rows == old.package.rows + EPISODES
    paths = []
    for name, package in (("old", old.package), ("new", new.package)):
        ground.store.download(package.key, tmp_path / name)
        paths.append(tmp_path / name)
    found = diff_manifests(*paths)
    assert (found.added, found.removed, found.corrected, found.moved) == (EPISODES, 0, 0, 0)
    assert found.added_by_vendor == {"twinarm_aloha": EPISODES}


def test_from_ingestion_to_the_same_rows_in_all_three_modes(ground: Ground, tmp_path: Path) -> None:
    from kinemill.loaders.manifest import open_manifest, resolve

    # Given a manifest that was built with its Parquet form
    with ground.warehouse() as warehouse:
        built = build_manifest(
            parse_spec(SPEC.replace("name: reach", "name: modes")), warehouse, store=ground.store, parquet=True
        )
    ref = resolve(ground.store, built.package.id)
    assert ref.key.removesuffix(".arrow") + ".parquet" == parquet_key(built.package)
    # When it is opened in each mode
    opened = [
        open_manifest(ref, mode=mode, store=ground.store, folder=tmp_path / "local")
        for mode in ("node_mmap", "remote_parquet", "in_memory")
    ]
    # Then rows and metadata are the same
    assert len(list(opened[0])) == built.package.rows
    assert list(opened[0]) == list(opened[1]) == list(opened[2])
    assert opened[0].metadata == opened[1].metadata == opened[2].metadata
    # And the Parquet form is put once; other rows under its key are refused
    arrow = tmp_path / "m.arrow"
    ground.store.download(built.package.key, arrow)
    assert publish_parquet(ground.store, built.package, arrow) == parquet_key(built.package)
    ground.store.delete(parquet_key(built.package))
    write_parquet(arrow, tmp_path / "other.parquet", sha256="0" * 64)
    ground.store.put_if_absent(parquet_key(built.package), tmp_path / "other.parquet")
    with pytest.raises(CorruptError, match="export again"):
        publish_parquet(ground.store, built.package, arrow)


def test_the_statistics_are_those_of_the_episodes_and_loaders_normalise_by_them(ground: Ground, tmp_path: Path) -> None:
    import numpy as np

    from kinemill.episode import EpisodeReader, Window
    from kinemill.loaders import SparseWindows, open_manifest, resolve, steps

    spec = parse_spec(SPEC.replace("name: reach", "name: numbers").replace("{train: 0.6, val: 0.4}", "{train: 1.0}"))
    with ground.warehouse() as warehouse:
        built = build_manifest(spec, warehouse, store=ground.store)
    manifest = open_manifest(resolve(ground.store, built.package.id), store=ground.store, folder=tmp_path / "local")
    told = parse_statistics(manifest.metadata)
    topic = next(iter(told))
    # Given all rows of a state topic, read one episode after the other
    rows = []
    for row in manifest:
        reader = EpisodeReader.open(ground.store, row.key)
        if topic in reader.topics:
            rows.append(reader.read([Window.between(topic, 0, 1 << 62)])[topic][1])
    whole = np.concatenate(rows)
    # Then the manifest's statistics are theirs
    assert told[topic].count == len(whole)
    assert told[topic].mean == pytest.approx(whole.mean(0), rel=1e-6, abs=1e-9)
    assert told[topic].std == pytest.approx(whole.std(0), rel=1e-6, abs=1e-9)
    assert told[topic].max == pytest.approx(whole.max(0), rel=1e-6)
    # And a data set is normalised by them without a further word
    data = SparseWindows(manifest, {topic: steps(0)}, normalise="mean_std")
    values = data.read(range(0, len(data), 3)).batch[topic][:, 0].numpy()
    assert np.abs(values.mean(0)).max() < 1.0
    assert values.std() == pytest.approx(1.0, abs=0.5)


def test_layouts_beside_the_objects_give_the_same_samples(ground: Ground, tmp_path: Path) -> None:
    import torch

    from kinemill.loaders import SparseWindows, open_manifest, resolve, steps
    from kinemill.pipelines.catalog.rebuild import rebuild

    opened = []
    for name, layouts in (("inside", "inline"), ("beside", "sidecar"), ("beside", "sidecar")):
        spec = parse_spec(SPEC.replace("name: reach", f"name: {name}") + f"layouts: {layouts}\n")
        with ground.warehouse() as warehouse:
            built = build_manifest(spec, warehouse, store=ground.store)
        ref = resolve(ground.store, built.package.id)
        opened.append(open_manifest(ref, store=ground.store, folder=tmp_path / "local"))
    inside, beside, again = opened
    assert again.identity == beside.identity
    assert all(row.layout for row in inside)
    assert not any(row.layout for row in beside)
    sidecars = {meta.key for meta in ground.store.list("episodes/") if meta.key.endswith(".layout")}
    assert sidecars == {layout_key(row.key) for row in beside}
    # Samples of the same episode are the same, whichever way its layout came
    topic = next(iter(parse_statistics(inside.metadata)))
    sets = [SparseWindows(m, {"/cam/scene": steps(0), topic: steps(range(4))}) for m in (inside, beside)]
    found = [{(s["episode_id"], int(s["anchor_ns"])): s for s in map(one.__getitem__, range(len(one)))} for one in sets]
    assert found[0].keys() == found[1].keys()
    for place in list(found[0])[::7]:
        for key in ("/cam/scene", topic):
            assert torch.equal(found[0][place][key], found[1][place][key])
    # And they are no strangers to who rebuilds the catalog
    report = rebuild(ground.catalog, ground.store)
    assert report.foreign == 0
    assert not report.refused


def test_what_is_taken_back_is_in_no_new_manifest(ground: Ground) -> None:
    spec = parse_spec(SPEC.replace("name: reach", "name: withdrawn"))
    victim = ground.catalog.episodes(limit=1)[0].card.episode_id
    with ground.warehouse() as warehouse:
        before = plan_manifest(spec, warehouse).rows

    ground.catalog.set_state([victim], EpisodeState.RETIRED)
    Exporter(ground.catalog, ground.target).run()

    with ground.warehouse() as warehouse:
        assert plan_manifest(spec, warehouse).rows == before - 1


def test_a_spec_that_nothing_meets_builds_nothing(ground: Ground) -> None:
    spec = parse_spec("name: none\nfilters: [{column: vendor, equals: nobody}]\n")

    with ground.warehouse() as warehouse, pytest.raises(DataError, match="no published episode"):
        build_manifest(spec, warehouse, store=ground.store)

    with pytest.raises(NotFoundError, match="no snapshot 5"):
        ground.warehouse(5)


@pytest.mark.parametrize(
    "sql",
    [
        "delete from episodes",
        "select 1; select 2",
        "copy (select 1) to '/tmp/kinemill-never'",
        "select * from read_text('/etc/passwd')",
        "attach '/tmp/kinemill-never.db'",
        "set enable_external_access = true",
        "select * from duckdb_secrets()",
        "selct",
    ],
)
def test_a_query_reads_the_tables_and_nothing_else(ground: Ground, sql: str) -> None:
    with ground.warehouse() as warehouse:
        if "duckdb_secrets" in sql:
            _, rows = warehouse.person(sql)
            assert ground.server.credentials.secret_key not in str(rows), "the secret is redacted"
            return
        with pytest.raises(UsageError):
            warehouse.person(sql)
    assert not Path("/tmp/kinemill-never").exists()


def test_the_commands_do_the_same_and_the_training_job_reads_it(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from kinemill.loaders.manifest.ref import resolve

    spec = tmp_path / "reach.yaml"
    spec.write_text(SPEC.replace("name: reach", "name: typed"))
    for name, value in {
        **ground.server.environ(),
        "KINEMILL_CATALOG_URL": ground.catalog.libpq_url,
        "KINEMILL_STORE_URL": ground.server.url_of("corpus"),
        "KINEMILL_WAREHOUSE_URL": ground.warehouse_url,
    }.items():
        monkeypatch.setenv(name, value)

    def kinemill(*arguments: str, code: int = 0) -> str:
        ended = run(cli, "kinemill", list(arguments))
        out, err = capsys.readouterr()
        assert ended == code, err
        assert ground.server.credentials.secret_key not in out + err
        return out

    assert json.loads(kinemill("warehouse", "sync", "--json"))["rows"] == 0
    assert json.loads(kinemill("warehouse", "status", "--json"))["lag"]["rows"] == 0
    counted = json.loads(kinemill("warehouse", "sql", "--json", "select vendor, count(*) from episodes group by 1"))
    assert ["deskarm_lerobot", EPISODES] in counted["rows"]
    plan = json.loads(kinemill("manifest", "plan", str(spec), "--json"))
    built = json.loads(kinemill("manifest", "build", str(spec), "--json"))
    assert built["package"]["id"] == plan["id"]
    assert "sha256 is right" in kinemill("manifest", "show", plan["id"], "--check")
    exported = json.loads(kinemill("manifest", "export", plan["id"], "--json"))
    assert kinemill("manifest", "export", plan["id"]).startswith(exported["parquet"])
    kinemill("manifest", "export", plan["id"], "--to", str(tmp_path / "rows.parquet"))
    assert (tmp_path / "rows.parquet").stat().st_size > 0
    kinemill("manifest", "export", plan["id"], "--to", str(tmp_path / "rows.parquet"), code=2)
    assert kinemill("manifest", "diff", plan["id"], plan["id"]).startswith("added 0, removed 0")
    assert resolve(ground.store, plan["id"]).rows == find_manifest(ground.store, plan["id"]).rows == plan["rows"]
    kinemill("manifest", "show", "nothing-here", code=1)
    spec.write_text("name: typed\nsplit: {train: 1.0}\n")
    kinemill("manifest", "plan", str(spec), code=78)
    kinemill("ingest", "status", "nobody/nothing", code=2)
    status = json.loads(kinemill("ingest", "status", "deskarm_lerobot/deskarm_lerobot", "--json", code=1))
    assert [q["code"] for q in status["quarantined"]] == ["frames_missing"]
    plan = json.loads(
        kinemill(
            "ingest",
            "plan",
            str(shared_drops()["deskarm_lerobot"].path),
            "--json",
            "--vendor",
            "deskarm_lerobot",
            "--work-dir",
            str(tmp_path / "w"),
        )
    )
    assert [item["done"] for item in plan["items"]] == [True]
