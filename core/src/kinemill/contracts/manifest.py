"""The columns of a manifest: an uncompressed Arrow IPC file, one row per chosen rendition.

Types are Arrow's own names as text, so that this module needs no pyarrow; `kinemill.manifest`
builds the schema from them. Everything a loader needs to read a sample stands in the row.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BATCH_ROWS", "MANIFEST_COLUMNS", "MANIFEST_VERSION", "ManifestColumn", "ManifestMode"]

MANIFEST_VERSION = 1
"""A reader refuses a higher version than its own by name."""

BATCH_ROWS = 1 << 20
"""Rows per record batch; the last one may be shorter."""

ManifestMode = ("node_mmap", "remote_parquet", "in_memory")
"""The values of the one switch `manifest.mode`; rows are identical in all three."""


@dataclass(frozen=True, slots=True)
class ManifestColumn:
    """One column: name, Arrow type, and what it means."""

    name: str
    type: str
    help: str
    nullable: bool = False


MANIFEST_COLUMNS: tuple[ManifestColumn, ...] = (
    ManifestColumn("episode_id", "fixed_size_binary[16]", "UUID bytes"),
    ManifestColumn("profile", "dictionary<int8,string>", "rendition profile, part of the key"),
    ManifestColumn("sha256", "fixed_size_binary[32]", "of the object; its first 6 bytes are the key's hash12"),
    ManifestColumn("size_bytes", "int64", "of the object"),
    ManifestColumn("vendor", "dictionary<int16,string>", "who recorded it"),
    ManifestColumn("robot", "dictionary<int16,string>", "robot model"),
    ManifestColumn("task", "dictionary<int32,string>", "task name"),
    ManifestColumn("instruction", "dictionary<int32,string>", "language instruction, may be empty"),
    ManifestColumn("split", "dictionary<int8,string>", "train, val, test or a site's own"),
    ManifestColumn("t_first_ns", "int64", "first message on the episode's own clock"),
    ManifestColumn("duration_ns", "int64", "last message minus first"),
    ManifestColumn("frames", "int32", "frames of the reference camera; 0 without cameras"),
    ManifestColumn("fps", "float32", "nominal rate of the reference camera; 0 without cameras"),
    ManifestColumn("weight", "float32", "sampling weight given by the curation spec"),
    ManifestColumn("topics", "dictionary<int32,string>", "topic table as JSON, shared by episodes of one robot"),
    ManifestColumn(
        "layout", "large_binary", "chunk tables of all groups, packed; null means the sidecar", nullable=True
    ),
)
"""In file order. New columns are appended, never moved or re-typed."""
