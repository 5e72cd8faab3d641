"""The export: every change reaches the warehouse, once, whatever dies on the way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from kinemill.contracts import EpisodeState
from kinemill.errors import ConflictError, KinemillError, StateError, TransientError, UsageError
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.warehouse.export import export_lag
from kinemill.pipelines.warehouse.orphans import OrphanReport, drop_orphans
from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.watermark import Watermark
from kinemill.store.embedded import S3Server
from support.catalog import fresh_catalog, postgres
from support.catalog_export import Place, ingest

STEPS = ("locked", "begun", "resynced", "bounded", "written", "committed", "pruned")


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
from kinemill.pipelines.warehouse.watermark import Watermark
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
