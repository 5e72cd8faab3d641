"""`kinemill catalog`: what a person types, and what a script reads in exit code and JSON."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
import sqlalchemy as sa
import yaml
from click.testing import CliRunner, Result

from kinemill.cli import cli, run
from kinemill.contracts import METRICS, EpisodeState, ExitCode
from kinemill.pipelines.catalog import Catalog, LabelRecord, uuid7
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.catalog.health import _GUARDS, Health, check_catalog
from kinemill.store.files import FileStore
from support.catalog import fresh_catalog, pair, postgres
from support.process import run_as_nobody


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "corpus")


@pytest.fixture
def set_up(one: Catalog, store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalog, a store and a warehouse, named in the environment."""
    monkeypatch.setenv("KINEMILL_CATALOG_URL", one.libpq_url)
    monkeypatch.setenv("KINEMILL_STORE_URL", store.url)
    monkeypatch.setenv("KINEMILL_WAREHOUSE_URL", (tmp_path / "warehouse").as_uri())
    return one


def kinemill(*words: str) -> Result:
    return CliRunner().invoke(cli, ["catalog", *words])


def as_json(*words: str) -> dict[str, object]:
    done = kinemill(*words, "--json")
    assert done.exit_code == ExitCode.OK, done.output
    found: dict[str, object] = json.loads(done.stdout)
    return found


def test_init_then_upgrade_then_check(wheel: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    url = wheel.create_database("commands")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("drop schema if exists kinemill cascade")
    monkeypatch.setenv("KINEMILL_CATALOG_URL", url)
    for name in ("KINEMILL_STORE_URL", "KINEMILL_WAREHOUSE_URL"):
        monkeypatch.delenv(name, raising=False)
    done = kinemill("check", "--json")
    assert done.exit_code == ExitCode.FINDING
    assert "kinemill catalog upgrade" in done.stdout
    assert as_json("init")["before"] is None
    again = as_json("upgrade")
    assert again["before"] == again["after"]
    assert "up to date" in kinemill("upgrade").stdout
    done = kinemill("check")
    # The test's server saves time where a power cut may hurt it, and says so.
    assert "fail  durability" in done.stdout
    assert "ok    guards" in done.stdout


def test_no_catalog_and_no_server_have_their_own_exit_codes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("KINEMILL_CATALOG_URL", raising=False)
    assert run(cli, "kinemill", ["catalog", "show"]) == ExitCode.CONFIG
    assert "KINEMILL_CATALOG_URL" in capsys.readouterr().err
    monkeypatch.setenv("KINEMILL_CATALOG_URL", "postgresql://u:hunter2@127.0.0.1:9/x")
    assert run(cli, "kinemill", ["catalog", "show"]) == ExitCode.TRANSIENT
    assert "hunter2" not in capsys.readouterr().err
    monkeypatch.setenv("KINEMILL_CATALOG_URL", "mysql://u:hunter2@127.0.0.1:9/x")
    assert run(cli, "kinemill", ["catalog", "show"]) == ExitCode.CONFIG
    assert "hunter2" not in capsys.readouterr().err


def test_show_what_is_known_and_nothing_that_moves_the_terminal(set_up: Catalog) -> None:
    evil = "\x1b[2J\x07 evil\r\nname"
    made = pair(vendor=evil, task=evil, instruction=evil)
    set_up.register_episodes([made], batch=evil)
    assert as_json("show")["ingested"] == 1
    done = kinemill("show", made[0].episode_id)
    assert done.exit_code == ExitCode.OK
    assert made[1].key in done.stdout
    assert not any(ord(c) < 32 and c != "\n" for c in done.stdout)
    assert "\\x1b[2J" in done.stdout
    shown = as_json("show", made[0].episode_id)
    assert shown["objects"][0]["sha256"] == made[1].receipt.sha256  # type: ignore[index]
    assert run(cli, "kinemill", ["catalog", "show", uuid7()]) == ExitCode.FINDING
    assert run(cli, "kinemill", ["catalog", "show", "no-id"]) == ExitCode.USAGE


def test_check_looks_at_objects_and_warehouse(set_up: Catalog, store: FileStore, tmp_path: Path) -> None:
    from kinemill.pipelines.warehouse.export import Exporter
    from kinemill.pipelines.warehouse.target import open_target

    card, rendition = pair()
    store.put_if_absent(rendition.key, bytes(rendition.receipt.size_bytes))
    set_up.register_episodes([(card, replace(rendition, etag=None))])
    set_up.mark_verified({rendition.key: store.head(rendition.key).etag or ""})
    target = open_target(set_up.libpq_url, (tmp_path / "warehouse").as_uri())
    Exporter(set_up, target).run()
    metrics = tmp_path / "catalog.prom"
    done = kinemill("check", "--metrics", str(metrics), "--json")
    assert done.exit_code == ExitCode.FINDING, "the test's server is not durable, and check says so"
    report = json.loads(done.stdout)
    findings = {finding["check"]: finding for finding in report["findings"]}
    for name in ("objects", "warehouse", "lag", "rows", "guards"):
        assert findings[name]["health"] == "ok", findings[name]
    assert metrics.read_text().splitlines()[-1] == "kinemill_export_lag_seconds 0.000"
    store.delete(rendition.key)
    with set_up.transaction("hiding") as connection:
        connection.execute(sa.text("set local session_replication_role = replica"))
        connection.execute(sa.text("update kinemill.episode set row_version = 9"))
    found = {f.check: f for f in check_catalog(set_up, store=store, target=target)}
    assert found["objects"].health is Health.FAIL
    assert "is not there" in found["objects"].detail
    assert found["warehouse"].health is Health.FAIL
    assert "version 9, warehouse" in found["warehouse"].detail


def test_check_sees_a_guard_that_was_switched_off(wheel: PostgresServer) -> None:
    with Catalog(wheel.create_database("sabotaged")) as catalog:
        catalog.upgrade()
        with catalog.transaction("sabotage") as connection:
            connection.execute(sa.text("alter table kinemill.episode disable trigger outbox_update"))
        found = {f.check: f for f in check_catalog(catalog)}
        assert found["guards"].health is Health.FAIL
        assert "episode.outbox_update" in found["guards"].detail
        with catalog.transaction("repair") as connection:
            connection.execute(sa.text("alter table kinemill.episode enable trigger outbox_update"))
            connection.execute(sa.text("delete from kinemill.episode_transition where new_state = 'retired'"))
        found = {f.check: f for f in check_catalog(catalog)}
        assert "not the contract's" in found["guards"].detail
        with catalog.engine.connect() as connection:
            named = {f"{table}.{name}" for table, names in _GUARDS.items() for name in names.split()}
            every = sa.text("""
                select c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
                where c.relnamespace = 'kinemill'::regnamespace and not t.tgisinternal
            """)
            assert set(connection.execute(every).scalars()) == named, "a trigger that no check would miss"


def test_check_sees_rows_that_no_guard_could_have_let_in(one: Catalog) -> None:
    one.register_episodes([pair()])
    with one.transaction("sabotage") as connection:
        connection.execute(sa.text("set local session_replication_role = replica"))
        connection.execute(sa.text("update kinemill.episode set state = 'published'"))
        connection.execute(sa.text("delete from kinemill.episode_group"))
        connection.execute(sa.text("delete from kinemill.rendition_receipt"))
    (rows,) = [f for f in check_catalog(one) if f.check == "rows"]
    assert rows.health is Health.FAIL
    for words in ("never read back", "without a critical check", "without a receipt", "without a topic group"):
        assert words in rows.detail


def test_purge_shows_first_and_needs_a_reason(set_up: Catalog, store: FileStore) -> None:
    card, rendition = pair()
    store.put_if_absent(rendition.key, bytes(10))
    set_up.register_episodes([(card, rendition)], labels=[LabelRecord(card.episode_id, "s", "l")])
    plan = as_json("purge", card.episode_id)
    assert plan["objects"] == [rendition.key]
    assert store.get(rendition.key), "shown, not done"
    assert run(cli, "kinemill", ["catalog", "purge", card.episode_id, "--yes"]) == ExitCode.USAGE
    done = kinemill("purge", card.episode_id, "--reason", "request 1", "--actor", "me", "--yes")
    assert done.exit_code == ExitCode.OK
    assert f"deleted  {rendition.key}" in done.stdout
    assert list(store.list()) == []
    assert set_up.episode(card.episode_id).state is EpisodeState.RETIRED
    assert "was done before" in kinemill("purge", card.episode_id, "--reason", "r", "--yes").stdout


def test_rebuild_tells_what_it_refused(set_up: Catalog, store: FileStore) -> None:
    card, rendition = pair()
    store.put_if_absent(rendition.key, b"not an episode")
    done = kinemill("rebuild", "--from-store", "--json")
    assert done.exit_code == ExitCode.FINDING
    report = json.loads(done.stdout)
    assert list(report["refused"]) == [rendition.key]
    assert run(cli, "kinemill", ["catalog", "rebuild"]) == ExitCode.USAGE
    assert card.episode_id not in [row.card.episode_id for row in set_up.episodes()]


@pytest.fixture
def backup_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kinemill-test-"))
    yield folder
    shutil.rmtree(folder)


def test_backup_is_verified_and_never_written_over(backup_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with postgres("wheel") as server, fresh_catalog(server) as catalog:
        assert catalog.status().up_to_date
        monkeypatch.setenv("KINEMILL_CATALOG_URL", server.tcp_url)  # with its password
        words = ["catalog", "backup", str(backup_folder / "b")]
        assert CliRunner().invoke(cli, words).exit_code == ExitCode.OK
        assert (backup_folder / "b" / "backup_manifest").exists()
        assert run(cli, "kinemill", words) == ExitCode.FINDING


def test_the_alert_is_on_a_metric_that_exists() -> None:
    from importlib.resources import files

    rules = yaml.safe_load((files("kinemill.pipelines.catalog") / "alerts.yml").read_text(encoding="utf-8"))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    assert len(expressions) == 2
    assert "kinemill_export_lag_seconds" in METRICS
    assert all("kinemill_export_lag_seconds" in expression for expression in expressions)


SCRIPT = """
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.catalog.embedded import PostgresServer
with PostgresServer(binaries="wheel", settings={"fsync": "off"}) as server, Catalog(server.url) as catalog:
    print(catalog.upgrade().current, server.account, server.binaries.major)
"""


def test_an_ordinary_user_has_a_catalog_too() -> None:
    done = run_as_nobody(SCRIPT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0002", "None", "18"]


def test_the_server_is_private(wheel: PostgresServer) -> None:
    assert wheel.pid is not None
    words = Path(f"/proc/{wheel.pid}/cmdline").read_bytes().decode()
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(_without_password(wheel))
    assert "password" not in words
    assert wheel.socket_folder.stat().st_mode & 0o077 == 0
    with psycopg.connect(wheel.tcp_url) as connection:
        found = connection.execute("select inet_server_addr()::text").fetchone()
        assert found is not None
        assert found[0].startswith("127.0.0.1")
        names = connection.execute("select name from pg_available_extensions").fetchall()
    assert {("btree_gist",), ("pg_stat_statements",)} <= set(names)


def _without_password(server: PostgresServer) -> str:
    scheme, rest = server.tcp_url.split("://")
    return f"{scheme}://kinemill:wrong@{rest.split('@')[1]}"
