"""The catalog's schema version: upgrade, downgrade, and what a database stands at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from kinemill.errors import UnavailableError
from kinemill.pipelines.catalog.database import translated
from kinemill.pipelines.catalog.models import SCHEMA

__all__ = ["SchemaStatus", "downgrade", "schema_status", "upgrade"]

_LOCK = 0x6B696E656D696C6C  # "kinemill"
_MIN_POSTGRES = 15


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """What a database stands at."""

    current: str | None
    """None: not set up."""
    head: str
    """What this program expects."""
    postgres: int
    """Major version."""

    @property
    def up_to_date(self) -> bool:
        """True where nothing is to be done."""
        return self.current == self.head


def _config(connection: sa.Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("kinemill.pipelines.catalog") / "migrations"))
    config.set_main_option("path_separator", "os")
    if connection is not None:
        config.attributes["connection"] = connection
    return config


def schema_status(engine: sa.Engine) -> SchemaStatus:
    """Read it; changes nothing."""
    with translated("reading the schema's version"), engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"version_table_schema": SCHEMA})
        current = context.get_current_revision()
        info = connection.dialect.server_version_info or (0,)
    head = ScriptDirectory.from_config(_config()).get_current_head()
    assert head is not None  # noqa: S101 - there is a first migration
    return SchemaStatus(current, head, int(info[0]))


@contextmanager
def _alone(engine: sa.Engine) -> Iterator[sa.Connection]:
    """A connection that is the only one migrating: a session lock, so that it goes with the process."""
    with translated("migrating the catalog"), engine.connect() as connection:
        if int((connection.dialect.server_version_info or (0,))[0]) < _MIN_POSTGRES:
            raise UnavailableError(f"PostgreSQL {_MIN_POSTGRES} or newer is needed")
        got = connection.execute(sa.text("select pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar_one()
        if not got:
            raise UnavailableError("another process is migrating this catalog; try again when it has finished")
        connection.execute(sa.text(f"create schema if not exists {SCHEMA}"))
        connection.commit()
        try:
            yield connection
        finally:
            connection.rollback()
            connection.execute(sa.text("select pg_advisory_unlock(:key)"), {"key": _LOCK})
            connection.commit()


def upgrade(engine: sa.Engine, revision: str = "head") -> SchemaStatus:
    """Bring the schema to `revision`; each migration all or nothing."""
    with _alone(engine) as connection:
        command.upgrade(_config(connection), revision)
    return schema_status(engine)


def downgrade(engine: sa.Engine, revision: str) -> SchemaStatus:
    """Take it back to `revision`, or to nothing with `base`. Drops data: for tests and for undoing an upgrade."""
    with _alone(engine) as connection:
        command.downgrade(_config(connection), revision)
    return schema_status(engine)
