"""The export: what arrives in the warehouse, after a restore too, and how it is compared."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa

from kinemill.cli import cli, run
from kinemill.contracts import EpisodeState, RunStatus, StepResult, StepStatus
from kinemill.errors import StateError, UnavailableError
from kinemill.pipelines.catalog import Catalog, LabelRecord, QualityRecord
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.warehouse.export import Exporter
from kinemill.pipelines.warehouse.metrics import count_rows
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.reconcile import entomb, reconcile
from kinemill.pipelines.warehouse.schema import EPISODES, arrow_schema
from kinemill.pipelines.warehouse.target import ExportTarget, IcebergTarget, open_sql_catalog
from kinemill.store.embedded import S3Server
from support.catalog import fresh_catalog, pair, postgres
from support.catalog_export import ListTarget, Place, ingest

# ---- what arrives


def test_a_row_says_all_that_the_catalog_knows(place: Place) -> None:
    catalog = place.catalog
    delivery = catalog.register_delivery("acme", "drop")
    made = pair(site="lab", recorded_at_ns=1_790_000_000_123_456_000)
    episode = made[0].episode_id
    catalog.register_episodes([made, pair(episode, profile="world", cameras=0)], delivery_id=delivery, batch="b")
    catalog.record_quality(
        [
            QualityRecord(episode, "post", 1, passed=False, score=1.0),
            QualityRecord(episode, "post", 2, passed=True, score=2.5),
            QualityRecord(episode, "blur", 1, passed=False, critical=False),
        ]
    )
    catalog.record_labels([LabelRecord(episode, "scene", "b"), LabelRecord(episode, "scene", 'a"')])
    catalog.record_labels([LabelRecord(episode, "wrong", "x")])
    catalog.retract_labels([LabelRecord(episode, "wrong", "x")])
    catalog.open_run("b")
    catalog.record_step(StepResult("b", "preview", 1, StepStatus.FAILED, "0" * 64))
    assert catalog.close_run("b", non_critical=["preview"]) is RunStatus.DEGRADED
    assert place.export() == 2
    table = place.target().table().scan().to_arrow()
    assert table.schema.names == arrow_schema().names == [column.name for column in EPISODES]
    rows = {row["profile"]: row for row in table.to_pylist()}
    row = rows["vla"]
    card, receipt = made[0], made[1].receipt
    assert row["episode_id"].hex() == episode.replace("-", "")
    assert {
        name: row[name] for name in ("vendor", "vendor_key", "robot", "task", "instruction", "language", "site")
    } == {
        name: getattr(card, name)
        for name in ("vendor", "vendor_key", "robot", "task", "instruction", "language", "site")
    }
    assert (row["object_key"], row["sha256"].hex(), row["size_bytes"]) == (
        made[1].key,
        receipt.sha256,
        receipt.size_bytes,
    )
    assert (row["frames"], row["fps"], row["gop_frames"], row["frames_suspect"]) == (120, 30.0, 5, False)
    assert (row["t_first_ns"], row["duration_ns"]) == (receipt.t_first_ns, receipt.t_last_ns - receipt.t_first_ns)
    assert (row["groups"], rows["world"]["groups"]) == (["cameras", "state"], ["state"])
    assert (row["delivery"], row["state"], row["tombstone"], row["split"]) == ("drop", "ingested", False, "train")
    assert json.loads(row["quality"]) == {"post": 2.5, "blur": None}
    assert (row["quality_passed"], row["failed_checks"]) == (True, ["blur"])
    assert json.loads(row["labels"]) == {"scene": ['a"', "b"]}
    assert row["degraded_steps"] == ["preview"]
    assert row["recorded_at"].timestamp() == pytest.approx(1_790_000_000.123456, abs=1e-6)
    assert row["row_version"] == catalog.episode(episode).row_version
    from kinemill.episode.layout import Layout

    layout = Layout.from_columns(row["topics"], row["layout"])
    assert [group.name for group in layout.groups] == ["cameras", "state"]
    assert layout.groups[0].offset.tolist() == list(receipt.groups[0].chunks.offset)


def test_only_changes_are_sent_and_the_newest_row_wins(only: Place) -> None:
    ids = ingest(only.catalog, 4)
    assert only.export() == 4
    assert only.export() == 0
    only.catalog.set_state(ids[:1], EpisodeState.VALIDATED)
    only.catalog.set_state(ids[:2], EpisodeState.QUARANTINED)
    only.catalog.register_episodes([pair(ids[2], seed=9)])
    assert only.export() == 3
    assert len(only.rows()) == 7, "nothing is rewritten"
    current = only.current()
    assert len(current) == 4
    states = Counter(row["state"] for row in current.values())
    assert states == {"quarantined": 2, "ingested": 2}
    key = bytes.fromhex(ids[2].replace("-", "")), "vla"
    assert current[key]["object_key"] == only.catalog.renditions([ids[2]])[0].key
    assert only.agrees()


def test_a_retired_episode_is_known_to_be_retired(only: Place) -> None:
    ids = ingest(only.catalog, 1)
    only.export()
    only.catalog.set_state(ids, EpisodeState.QUARANTINED)
    only.catalog.set_state(ids, EpisodeState.RETIRED)
    only.export()
    assert [row["state"] for row in only.current().values()] == ["retired"]


def test_many_commits_of_few_rows_are_the_same(only: Place) -> None:
    for _ in range(5):
        ingest(only.catalog, 7)
    report = Exporter(only.catalog, only.target(), batch_rows=10).run()
    assert (report.rows, report.commits) == (35, 4)
    assert len(only.rows()) == 35
    assert only.agrees()
    more = Exporter(only.catalog, only.target(), batch_rows=1)
    ingest(only.catalog, 3)
    assert more.run(max_commits=2).commits == 2
    assert more.run().commits == 1
    assert only.agrees()


def test_the_fake_keeps_the_same_promises(one: Catalog) -> None:
    fake = ListTarget()
    assert isinstance(fake, ExportTarget)
    ingest(one, 3)
    assert Exporter(one, fake).run().rows == 3
    assert Exporter(one, fake).run().rows == 0
    assert {row["vendor"] for row in fake.rows} == {"acme"}


# ---- another epoch


def dump_and_restore(server: PostgresServer, source: str, target: str, *, into: PostgresServer | None = None) -> str:
    """Through pg_dump and psql; the new database's URL."""
    dumped = server.run_tool("pg_dump", "--no-owner", f"--dbname={source}")
    to = into or server
    url = to.create_database(target)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema public")
    program = to.binaries.bin / "psql"
    subprocess.run(
        [str(program), "--quiet", "--set=ON_ERROR_STOP=1", "--no-psqlrc", f"--dbname={url}"],
        input=b"create schema public;\n" + dumped.stdout.replace(b"CREATE SCHEMA public;", b""),
        check=True,
        capture_output=True,
    )
    return url


@pytest.mark.parametrize("elsewhere", [False, True])
def test_after_a_restore_from_a_dump_all_is_sent_again(s3: S3Server, elsewhere: bool) -> None:
    with postgres("wheel") as server, postgres("wheel") as other, fresh_catalog(server) as catalog:
        place = Place(catalog, s3)
        kept = ingest(catalog, 4)
        place.export()
        name = catalog.libpq_url.split("?", maxsplit=1)[0].rsplit("/", 1)[1]
        # The dump is taken now. What is registered and exported later is lost by the restore.
        url = dump_and_restore(server, name, "restored", into=other if elsewhere else None)
        lost = ingest(catalog, 3)
        catalog.set_state(kept[:1], EpisodeState.QUARANTINED)
        place.export()
        assert len(place.current()) == 7
        with Catalog(url) as restored:
            # The tables' files are where they were; the Iceberg catalog came back with the dump, as of then.
            again = Place(restored, s3)
            again.url = place.url
            head = place.target().table().metadata_location
            with restored.engine.begin() as connection:
                connection.execute(sa.text("update iceberg_tables set metadata_location = :at"), {"at": head})
            fresh = ingest(restored, 2)
            report = Exporter(restored, again.target()).run()
            assert report.resynced
            assert report.rows == 6
            assert Exporter(restored, again.target()).run().rows == 0
            current = again.current()
            assert len(current) == 9
            first = current[bytes.fromhex(kept[0].replace("-", "")), "vla"]
            assert first["state"] == "ingested", "the restored state wins, although its version is older"
            difference = reconcile(restored, again.target())
            assert (difference.differences, {d.kind for d in difference.shown}) == (3, {"unknown"})
            assert {d.episode_id for d in difference.shown} == set(lost)
            assert entomb(restored, again.target()) == 3
            assert entomb(restored, again.target()) == 0
            assert again.agrees()
            offered = {k[0].hex() for k, row in again.current().items() if not row["tombstone"]}
            assert offered == {e.replace("-", "") for e in (*kept, *fresh)}
            ingest(restored, 1)
            assert again.export() == 1
            assert again.agrees()


def test_a_warehouse_of_another_catalog_is_refused(wheel: PostgresServer, s3: S3Server) -> None:
    with fresh_catalog(wheel) as first, fresh_catalog(wheel) as second:
        place = Place(first, s3)
        ingest(first, 1)
        place.export()
        tables = open_sql_catalog(first.libpq_url, place.url, s3.credentials)
        with ChangeReader(second.libpq_url) as reader:
            owner = reader.identity()
        with pytest.raises(StateError, match="derived from catalog"):
            IcebergTarget(tables, owner).watermark()


def test_a_new_warehouse_gets_everything_though_the_outbox_was_pruned(only: Place) -> None:
    ingest(only.catalog, 3)
    only.export()
    with only.catalog.transaction("ageing") as connection:
        connection.execute(sa.text("update kinemill.outbox set at = at - interval '30 days'"))
    ingest(only.catalog, 1)
    only.export()
    with only.catalog.transaction("counting") as connection:
        assert connection.execute(sa.text("select count(*) from kinemill.outbox")).scalar_one() == 1, "pruned"
        connection.execute(sa.text("truncate iceberg_tables, iceberg_namespace_properties"))
    only.move()
    assert only.export() == 4
    assert only.agrees()


# ---- compared row by row


def test_reconcile_sees_every_kind_of_difference(only: Place) -> None:
    ids = ingest(only.catalog, 5)
    only.export()
    assert only.agrees()
    target = only.target()
    with ChangeReader(only.catalog.libpq_url) as reader:
        stand = target.watermark()
        assert stand is not None
        rows = target.table().scan().to_arrow().sort_by("seq")
        schema = arrow_schema()

        def add(**change: Any) -> None:
            row = rows.slice(0, 1).to_pylist()[0] | change
            target.append([pa.RecordBatch.from_pylist([row], schema=schema)], stand, after=stand)

        assert reader.epoch() == stand.epoch
        add(episode_id=b"\x01" * 16, seq=10_001)
        add(state="published", seq=10_002)
        third = rows.slice(2, 1).to_pylist()[0]
        add(**third)
    ingest(only.catalog, 1)
    with only.catalog.transaction("hiding a change") as connection:
        connection.execute(
            sa.text("delete from kinemill.outbox where episode_id <> all (cast(:ids as uuid[]))"), {"ids": ids}
        )
    report = reconcile(only.catalog, only.target())
    kinds = Counter(difference.kind for difference in report.shown)
    assert kinds == {"unknown": 1, "superseded": 1, "repeated": 1, "missing": 1}
    assert not report.ok
    assert report.differences == 4
    assert any("state ingested, warehouse published" in d.detail for d in report.shown)


def test_a_table_of_an_older_program_gains_the_new_columns(only: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from kinemill.pipelines.warehouse import read, schema

    older = schema.EPISODES[:-1]
    ingest(only.catalog, 2)
    with monkeypatch.context() as patch:
        patch.setattr(schema, "EPISODES", older)
        patch.setattr(read, "_SQL", read._SQL.replace(", e.updated_at\nfrom due", "\nfrom due"))
        assert only.export() == 2
        assert len(only.target().table().schema().fields) == len(older)
    ingest(only.catalog, 1)
    assert only.export() == 1
    assert Counter(row["updated_at"] is None for row in only.rows()) == {True: 2, False: 1}
    assert only.agrees()


def test_exported_rows_are_counted_from_one_run_to_the_next(
    only: Place,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in {
        **only.s3.environ(),
        "KINEMILL_CATALOG_URL": only.catalog.libpq_url,
        "KINEMILL_WAREHOUSE_URL": only.url,
    }.items():
        monkeypatch.setenv(name, value)
    file = tmp_path / "export.prom"
    totals = []
    for count in (3, 2, 0):
        if count:
            ingest(only.catalog, count)
        assert run(cli, "kinemill", ["warehouse", "sync", "--metrics", str(file)]) == 0, capsys.readouterr().err
        help_line, type_line, value = file.read_text().splitlines()
        assert help_line.startswith("# HELP kinemill_export_rows_total ")
        assert type_line == "# TYPE kinemill_export_rows_total counter"
        totals.append(value.removeprefix("kinemill_export_rows_total "))
    assert totals == ["3", "5", "5"]
    assert [path.name for path in tmp_path.iterdir()] == ["export.prom"]
    assert run(cli, "kinemill", ["warehouse", "sync", "--metrics", str(tmp_path / "none" / "x.prom")]) == 2
    # (a counter that cannot be written costs nothing else)
    (tmp_path / ".export.prom.new").mkdir()
    assert run(cli, "kinemill", ["warehouse", "sync", "--metrics", str(file)]) == 0
    assert "0 exported rows were not counted" in caplog.text


def test_rows_that_were_committed_before_an_export_died_are_counted(only: Place) -> None:
    ingest(only.catalog, 6)
    written = []

    def dying(step: str) -> None:
        if step == "written":
            written.append(step)
            if len(written) == 2:
                raise UnavailableError("the store is gone")

    exporter = Exporter(only.catalog, only.target(), batch_rows=4, on_step=dying)
    with pytest.raises(UnavailableError):
        exporter.run()
    assert exporter.committed == len(only.rows()) == 4


@pytest.mark.parametrize("before", [None, "", "kinemill_export_rows_total x\n", "kinemill_export_rows_total 7\n"])
def test_a_counter_goes_on_from_its_file_or_begins_anew(tmp_path: Path, before: str | None) -> None:
    file = tmp_path / "export.prom"
    if before is not None:
        file.write_text(before)
    already = 7 if before and "7" in before else 0
    assert count_rows(file, 5) == already + 5
    assert file.read_text().endswith(f"kinemill_export_rows_total {already + 5}\n")
