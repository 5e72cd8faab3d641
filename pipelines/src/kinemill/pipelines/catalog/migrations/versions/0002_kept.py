"""Rows keep what they are about, in every table that records something, and none is deleted."""

from __future__ import annotations

from pathlib import Path

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_HERE = Path(__file__).parent


def upgrade() -> None:
    """Add the triggers and the key; fails, and changes nothing, where a row contradicts the key already."""
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(
        (_HERE / "0002_up.sql").read_text(encoding="utf-8")
    )


def downgrade() -> None:
    """Take them away; no row is touched."""
    op.get_bind().execution_options(no_parameters=True).exec_driver_sql(
        (_HERE / "0002_down.sql").read_text(encoding="utf-8")
    )
