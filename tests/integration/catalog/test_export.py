"""The export: every change reaches the warehouse, once, whatever dies on the way."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from pyiceberg.catalog.sql import SqlCatalog

from kinemill.contracts import EpisodeState, RunStatus, StepResult, StepStatus
from kinemill.errors import ConflictError, KinemillError, StateError, TransientError, UsageError
from kinemill.pipelines.catalog import Catalog, LabelRecord, QualityRecord
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.warehouse.export import Exporter, export_lag
from kinemill.pipelines.warehouse.orphans import OrphanReport, drop_orphans
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.reconcile import entomb, reconcile
from kinemill.pipelines.warehouse.schema import EPISODES, arrow_schema
from kinemill.pipelines.warehouse.target import ExportTarget, IcebergTarget, Watermark, open_sql_catalog
from kinemill.store.embedded import S3Server
from support.catalog import fresh_catalog, pair, postgres

_numbers = itertools.count()
STEPS = ("locked", "begun", "resynced", "bounded", "written", "committed", "pruned")


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
        self.url = s3.url_of(f"warehouse-{os.getpid()}-{next(_numbers)}")

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


@pytest.fixture
def place(catalog: Catalog, s3: S3Server) -> Place:
    return Place(catalog, s3)


@pytest.fixture
def only(one: Catalog, s3: S3Server) -> Place:
    return Place(one, s3)


def ingest(catalog: Catalog, count: int = 3, **more: object) -> list[str]:
    return [done.episode_id for done in catalog.register_episodes([pair(**more) for _ in range(count)])]


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


# ---- never lost, never twice


def test_a_long_open_transaction_delays_and_never_loses(place: Place) -> None:
    ingest(place.catalog, 1)
    assert place.export() == 1
    with place.catalog.engine.begin() as slow:
        # Begins first, commits last: its sequence numbers and times are older than what is exported meanwhile.
        slow.execute(sa.text("update kinemill.episode set site = 'slow'"))
        ingest(place.catalog, 5)
        assert place.export() == 0, "nothing may pass an open transaction"
        lag = export_lag(place.catalog, place.target().watermark())
        assert lag.rows == 5
        assert "idle in transaction" in lag.held_by[0]
    assert place.export() == 6
    assert place.agrees()
    assert export_lag(place.catalog, place.target().watermark()).rows == 0


def test_an_aborted_transaction_leaves_no_trace(only: Place) -> None:
    ingest(only.catalog, 1)
    with only.catalog.engine.connect() as failing:
        failing.execute(sa.text("update kinemill.episode set site = 'never'"))
        failing.rollback()
    assert only.export() == 1
    assert [row["site"] for row in only.rows()] == [""]


def test_a_second_exporter_steps_back(only: Place) -> None:
    ingest(only.catalog, 2)
    refused: list[BaseException] = []

    def other(step: str) -> None:
        if step == "written":
            with pytest.raises(ConflictError, match="at work") as caught:
                only.export()
            refused.append(caught.value)

    assert only.export(on_step=other) == 2
    assert len(refused) == 1
    assert len(only.rows()) == 2


def test_two_exporters_that_both_believe_to_be_alone_land_once(only: Place) -> None:
    """The lock was lost (the session died), and another exporter took over: the table itself refuses."""
    ingest(only.catalog, 3)

    def overtaken(step: str) -> None:
        if step == "written":
            with only.catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as admin:
                admin.execute(
                    sa.text("""
                        select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and granted
                        and pid <> pg_backend_pid()
                        and database = (select oid from pg_database where datname = current_database())
                    """)
                )
            assert only.export() == 3, "the other one gets through"

    with pytest.raises((ConflictError, TransientError)):
        only.export(on_step=overtaken)
    assert len(only.rows()) == 3
    assert only.export() == 0
    assert only.agrees()


def test_a_commit_that_lost_the_race_adds_nothing(only: Place) -> None:
    """The same without any check before it: only the table's own compare-and-swap stands between."""
    ids = ingest(only.catalog, 3)
    late, early = only.target(), only.target()
    with ChangeReader(only.catalog.libpq_url) as reader:
        epoch = reader.epoch()
        span = reader.next_span(Watermark(epoch, 0, 0), 1000)
        assert span is not None
        to = Watermark(epoch, *span.last)

        def overtake() -> None:
            assert early.append(list(reader.batches(span)), to, after=None) == 3

        rows = list(reader.batches(span))
        with pytest.raises(ConflictError):
            late.append(rows, Watermark(epoch, to.xid, to.seq + 1), after=None, before_commit=overtake)
        with pytest.raises(ConflictError, match="another exporter"):
            late.append(rows, to, after=None)
    assert len(only.rows()) == len(ids)


EXPORTER = """
import json, os, signal, sys
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.warehouse.export import Exporter
from kinemill.pipelines.warehouse.target import open_target
url, warehouse, die_at, nth = sys.argv[1:]
seen = 0
def on_step(step):
    global seen
    seen += step == die_at
    if step == die_at and seen == int(nth):
        os.kill(os.getpid(), signal.SIGKILL)
with Catalog(url) as catalog:
    print(Exporter(catalog, open_target(url, warehouse), batch_rows=4, on_step=on_step).run().rows)
"""


def killed_exporter(place: Place, die_at: str, nth: int = 1) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")} | place.s3.environ()
    done = subprocess.run(
        [sys.executable, "-c", EXPORTER, place.catalog.libpq_url, place.url, die_at, str(nth)],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr


@pytest.mark.parametrize(
    "die_at",
    [
        step if step in ("written", "committed") else pytest.param(step, marks=pytest.mark.full("catalog"))
        for step in STEPS
    ],
)
def test_an_exporter_killed_at_any_boundary_loses_and_doubles_nothing(only: Place, die_at: str) -> None:
    for _ in range(3):
        ingest(only.catalog, 4)
    killed_exporter(only, die_at)
    deadline = time.monotonic() + 120
    while True:  # the server notices the dead session's lock in its own time
        try:
            only.export(batch_rows=4)
            break
        except ConflictError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    rows = only.rows()
    assert Counter(row["seq"] for row in rows).most_common(1)[0][1] == 1
    assert len(rows) == 12
    assert only.agrees()


def test_what_a_killed_export_left_is_found_and_removed(only: Place) -> None:
    ingest(only.catalog, 4)
    only.export()
    ingest(only.catalog, 4)
    killed_exporter(only, "written")
    deadline = time.monotonic() + 120
    while True:
        try:
            assert only.export() == 4
            break
        except ConflictError:  # the server notices the dead session's lock in its own time
            assert time.monotonic() < deadline
            time.sleep(0.05)
    store = only.s3.store(only.url.split("?")[0].rsplit("/", 1)[1])

    def drop(later_s: float, **more: Any) -> OrphanReport:
        now = time.time_ns() + int(later_s * 1e9)
        return drop_orphans(only.catalog, only.target(), store, grace_s=3600, now_ns=now, **more)

    young = drop(0, delete=True)
    assert (young.referenced, young.orphans, young.too_young, young.deleted) == (2, (), 1, False)
    with pytest.raises(StateError, match="Nothing was removed"):
        drop_orphans(only.catalog, only.target(), only.s3.store("elsewhere"), delete=True)
    with pytest.raises(UsageError, match="too short"):
        drop_orphans(only.catalog, only.target(), store, grace_s=60)
    told = drop(7200)
    assert (len(told.orphans), told.deleted) == (1, False)
    assert told.size_bytes == store.head(told.orphans[0]).size_bytes, "it was only told"
    ingest(only.catalog, 1)

    def meanwhile(step: str) -> None:
        if step == "written":
            with pytest.raises(ConflictError, match="at work"):
                drop(7200, delete=True)

    assert only.export(on_step=meanwhile) == 1
    assert drop(7200, delete=True).orphans == told.orphans
    assert drop(7200) == OrphanReport(3, (), 0, 0, deleted=False)
    assert len(only.rows()) == 9
    assert only.agrees()


def test_an_exporter_killed_in_the_middle_of_several_commits(only: Place) -> None:
    for _ in range(3):
        ingest(only.catalog, 4)
    killed_exporter(only, "written", nth=2)
    deadline = time.monotonic() + 120
    while True:
        try:
            assert only.export() == 8
            break
        except ConflictError:  # as above
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert len(only.rows()) == 12
    assert only.agrees()


# ---- servers that go


def test_postgres_restarts_in_the_middle_of_a_batch(s3: S3Server) -> None:
    with postgres("wheel", durable=True) as server, fresh_catalog(server) as catalog:
        place = Place(catalog, s3)
        ingest(catalog, 6)

        def crash(step: str) -> None:
            if step == "written":
                server.kill()
                server.restart()

        with pytest.raises(KinemillError) as caught:
            place.export(on_step=crash)
        assert caught.value.transient
        assert place.export() == 6
        ingest(catalog, 2)
        assert place.export() == 2
        assert len(place.rows()) == 8
        assert place.agrees()


def test_the_object_store_goes_and_comes_back(one: Catalog) -> None:
    with S3Server() as s3:
        place = Place(one, s3)
        ingest(one, 3)
        assert place.export() == 3
        ingest(one, 4)

        def gone(step: str) -> None:
            if step == "bounded":
                s3.kill()

        with pytest.raises(KinemillError) as caught:
            place.export(on_step=gone)
        assert caught.value.transient
        s3.restart()
        assert place.export() == 4
        assert len(place.rows()) == 7
        assert place.agrees()


@pytest.mark.full("catalog")
def test_half_a_minute_without_the_object_store(one: Catalog, tmp_path: Path) -> None:
    """Readers and writers outlast it by their own retries; an export says so, and the next one lands once."""
    with S3Server() as s3:
        place, store = Place(one, s3), s3.store()
        ingest(one, 3)
        assert place.export() == 3
        body = os.urandom(3 << 20)
        store.put_if_absent("before", body)
        ingest(one, 4)
        s3.kill()
        begun = time.monotonic()
        back = threading.Timer(30.0, s3.restart)
        back.start()
        try:
            with pytest.raises(KinemillError) as caught:
                place.export()
            assert caught.value.transient
            store.download("before", tmp_path / "got", size_bytes=len(body))
            store.put_if_absent("during", b"written while it was gone")
        finally:
            back.join()
        assert time.monotonic() - begun >= 30, "it was gone for half a minute"
        assert (tmp_path / "got").read_bytes() == body
        assert store.get("during") == b"written while it was gone"
        with pytest.raises(ConflictError):
            store.put_if_absent("during", b"again")
        assert place.export() == 4
        assert len(place.rows()) == 7
        assert place.agrees()


def test_a_full_disk_fails_cleanly_and_the_next_run_goes_on(only: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyiceberg.io import pyarrow as files

    ingest(only.catalog, 3)
    real = files.PyArrowFile.create

    def full(self: Any, overwrite: bool = False) -> Any:
        if self.location.endswith(".parquet"):
            raise OSError(28, "No space left on device")
        return real(self, overwrite)

    monkeypatch.setattr(files.PyArrowFile, "create", full)
    with pytest.raises(KinemillError, match="No space left"):
        only.export()
    monkeypatch.undo()
    assert only.export() == 3
    assert only.agrees()


def test_the_clock_may_jump(only: Place) -> None:
    ingest(only.catalog, 2)
    only.export()
    with only.catalog.transaction("jumping") as connection:
        connection.execute(sa.text("set local session_replication_role = replica"))
        connection.execute(sa.text("update kinemill.episode set updated_at = now() - interval '1 year'"))
        connection.execute(sa.text("update kinemill.outbox set at = at + interval '1 year'"))
    ids = ingest(only.catalog, 2)
    with only.catalog.transaction("jumping") as connection:
        connection.execute(sa.text("update kinemill.outbox set at = at + interval '2 years'"))
    assert export_lag(only.catalog, only.target().watermark()).seconds == 0, "never negative"
    assert only.export() == 2
    only.catalog.set_state(ids, EpisodeState.QUARANTINED)
    assert only.export() == 2
    assert only.agrees()


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
    only.url = only.s3.url_of(f"second-{next(_numbers)}")
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
