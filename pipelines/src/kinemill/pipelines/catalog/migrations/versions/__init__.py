"""One file a schema change; each goes up, down and up again on every supported PostgreSQL."""
