"""Schema changes: up, down, up; interrupted; two at once; and the models that mirror them."""

from __future__ import annotations

import threading
import warnings

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from kinemill.contracts import EPISODE_TRANSITIONS
from kinemill.errors import ConfigError, KinemillError, UnavailableError
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.catalog.models import SCHEMA, Base
from kinemill.pipelines.catalog.schema import downgrade, schema_status, upgrade
from support.catalog import pair


def objects(engine: sa.Engine) -> set[str]:
    """Everything in the schema, by kind and name."""
    with engine.connect() as connection:
        return set(
            connection.execute(
                sa.text("""
                    select 'relation ' || relname from pg_class where relnamespace = 'kinemill'::regnamespace
                    union all select 'function ' || proname from pg_proc where pronamespace = 'kinemill'::regnamespace
                    union all select 'type ' || typname from pg_type where typnamespace = 'kinemill'::regnamespace
                    union all select 'constraint ' || conname from pg_constraint
                        where connamespace = 'kinemill'::regnamespace
                """)
            ).scalars()
        )


def test_up_down_and_up_again_leaves_nothing_and_makes_the_same(catalog: Catalog) -> None:
    made = objects(catalog.engine)
    assert len(made) > 100
    assert downgrade(catalog.engine, "base").current is None
    left = {name for name in objects(catalog.engine) if "alembic" not in name}
    assert left == set()
    assert upgrade(catalog.engine).up_to_date
    assert objects(catalog.engine) == made
    catalog.register_episodes([pair()])
    assert upgrade(catalog.engine).up_to_date, "a second upgrade changes nothing"
    assert catalog.counts()["ingested"] == 1


def test_a_row_that_a_newer_schema_forbids_stops_the_upgrade_and_nothing_is_changed(one: Catalog) -> None:
    assert downgrade(one.engine, "0001").current == "0001"
    first, second = (done.episode_id for done in one.register_episodes([pair(), pair()]))
    before = objects(one.engine)
    with one.engine.begin() as connection:
        connection.execute(
            sa.text("""
                insert into kinemill.quality_result
                    (episode_id, rendition_id, check_name, check_version, critical, passed)
                select cast(:other as uuid), id, 'post', 1, true, true from kinemill.rendition
                where episode_id = cast(:own as uuid)
            """),
            {"own": first, "other": second},
        )
    with pytest.raises(KinemillError, match="quality_of_its_own_object"):
        one.upgrade()
    assert schema_status(one.engine).current == "0001"
    assert objects(one.engine) == before
    with one.engine.begin() as connection:
        connection.execute(sa.text("set local session_replication_role = replica"))
        connection.execute(sa.text("delete from kinemill.quality_result"))
    assert one.upgrade().up_to_date
    assert one.counts()["ingested"] == 2


def test_the_models_mirror_the_migrations(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Did not recognize type 'xid8'")
        context = MigrationContext.configure(
            connection,
            opts={
                "version_table_schema": SCHEMA,
                "include_schemas": True,
                "include_name": lambda name, kind, _: kind != "schema" or name == SCHEMA,
                "compare_type": True,
            },
        )
        assert compare_metadata(context, Base.metadata) == []


def test_the_database_knows_the_contract_s_state_machine(catalog: Catalog) -> None:
    with catalog.engine.connect() as connection:
        rows = connection.execute(sa.text("select old_state, new_state from kinemill.episode_transition"))
        assert {(row[0], row[1]) for row in rows} == {(a.value, b.value) for a, b in EPISODE_TRANSITIONS}


def test_an_interrupted_migration_leaves_the_database_as_it_was(wheel: PostgresServer) -> None:
    with Catalog(wheel.create_database("interrupted")) as catalog:
        blocker = catalog.engine.connect()
        blocker.execute(sa.text("create schema kinemill"))
        blocker.commit()
        # The migration waits for this name in the middle of its work.
        blocker.execute(sa.text("create table kinemill.outbox (x int)"))
        failures: list[KinemillError] = []

        def run() -> None:
            try:
                catalog.upgrade()
            except KinemillError as exc:
                failures.append(exc)

        thread = threading.Thread(target=run)
        thread.start()
        with catalog.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as watch:
            waiting = sa.text("""
                select pid from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()
            """)
            while (pid := watch.execute(waiting).scalar()) is None:
                assert thread.is_alive()
            with pytest.raises(UnavailableError, match="another process is migrating"):
                catalog.upgrade()
            watch.execute(sa.text("select pg_terminate_backend(:pid)"), {"pid": pid})
        thread.join()
        blocker.rollback()
        blocker.close()
        assert len(failures) == 1
        assert failures[0].transient
        assert schema_status(catalog.engine).current is None
        assert {name for name in objects(catalog.engine) if "alembic" not in name} == set()
        assert catalog.upgrade().up_to_date
    wheel.drop_database("interrupted")


def test_a_database_that_is_not_set_up_says_what_to_do(wheel: PostgresServer) -> None:
    with Catalog(wheel.create_database("bare")) as catalog:
        with pytest.raises(ConfigError, match="kinemill catalog upgrade"):
            catalog.counts()
        assert catalog.status().current is None
    wheel.drop_database("bare")


def test_an_unknown_version_is_not_touched(one: Catalog) -> None:
    with one.engine.begin() as connection:
        connection.execute(sa.text("update kinemill.alembic_version set version_num = '9999'"))
    with pytest.raises((KinemillError, Exception), match="9999"):
        one.upgrade()
    assert one.status().current == "9999"
