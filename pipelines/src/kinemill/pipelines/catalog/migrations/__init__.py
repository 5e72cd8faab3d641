"""Alembic environment of the catalog; `kinemill catalog upgrade` runs it."""
