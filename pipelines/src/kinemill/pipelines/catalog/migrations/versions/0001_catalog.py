"""The catalog: tables, constraints that make wrong states impossible, and the outbox."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_HERE = Path(__file__).parent


def upgrade() -> None:
    """Create everything; the SQL is the truth, the models only mirror it."""
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(
        (_HERE / "0001_up.sql").read_text(encoding="utf-8")
    )


def downgrade() -> None:
    """Drop everything but the schema and the extension, which others may use."""
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(
        (_HERE / "0001_down.sql").read_text(encoding="utf-8")
    )
