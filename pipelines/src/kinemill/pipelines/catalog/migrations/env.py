"""Runs migrations on the connection that `kinemill.pipelines.catalog.schema` hands over.

Each migration is one transaction together with its line in the version table, so that an interrupted one leaves
the schema as it was.
"""

from __future__ import annotations

from alembic import context

from kinemill.pipelines.catalog.models import SCHEMA, Base

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    version_table_schema=SCHEMA,
    include_schemas=True,
    include_name=lambda name, kind, _: kind != "schema" or name == SCHEMA,
    transaction_per_migration=True,
    compare_type=True,
)
with context.begin_transaction():
    context.run_migrations()
