"""Manifests: one Arrow IPC file that says which episodes a job may read, and everything needed to read them.

The columns are `kinemill.contracts.MANIFEST_COLUMNS`. A file is named for its content and never changes; the
same spec, snapshot and seed give the same bytes. Mapping one in a training job is `kinemill.loaders.manifest`.

    >>> with ManifestWriter(path, dictionaries, metadata={"seed": "7"}) as writer:
    ...     writer.add(batch)  # plain columns, any number of rows
    >>> package = publish_manifest(store, writer.written, info)
    >>> find_manifest(store, package.id).rows
"""

from __future__ import annotations

from kinemill.manifest.package import ManifestPackage, find_manifest, list_manifests, publish_manifest
from kinemill.manifest.parquet import parquet_key, publish_parquet, write_parquet
from kinemill.manifest.reader import ManifestFile
from kinemill.manifest.schema import METADATA_PREFIX, arrow_type, dictionary_fields, manifest_schema
from kinemill.manifest.writer import ManifestWriter, WrittenManifest

__all__ = [
    "METADATA_PREFIX",
    "ManifestFile",
    "ManifestPackage",
    "ManifestWriter",
    "WrittenManifest",
    "arrow_type",
    "dictionary_fields",
    "find_manifest",
    "list_manifests",
    "manifest_schema",
    "parquet_key",
    "publish_manifest",
    "publish_parquet",
    "write_parquet",
]
