"""The warehouse: Iceberg tables derived from the catalog, never written by hand."""
