"""The Iceberg table `episodes`: what curation, manifests and engines see of the catalog.

**One row per version of a rendition.** A row is appended whenever an episode, its rendition, quality or labels
changed in the catalog; `seq` rises with every change, so the row with the highest `seq` of an (`episode_id`,
`profile`) is the current one:

.. code-block:: sql

    select * from episodes qualify row_number() over (partition by episode_id, profile order by seq desc) = 1

and curation keeps those with `state = 'published' and not tombstone`. Appending needs no rewrite and no delete
files, a reader of an old snapshot sees exactly what it saw then, and compaction may drop superseded rows.

Columns are only ever added, at the end; ids and types never change, and in a table that exists an added column is
optional, since older rows have none of it. Everything that
`kinemill.contracts.MANIFEST_COLUMNS` needs stands here, except `weight`, which a curation spec gives.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema

__all__ = [
    "CURRENT_SQL",
    "EPISODES",
    "EPISODES_TABLE",
    "NAMESPACE",
    "WarehouseColumn",
    "arrow_schema",
    "iceberg_schema",
]

NAMESPACE = "kinemill"
EPISODES_TABLE = f"{NAMESPACE}.episodes"

CURRENT_SQL = "select * from {table} qualify row_number() over (partition by episode_id, profile order by seq desc) = 1"
"""Current rows; `{table}` is however the engine names the table. DuckDB, ClickHouse, Snowflake know QUALIFY."""


@dataclass(frozen=True, slots=True)
class WarehouseColumn:
    """One column: name, Iceberg type, meaning."""

    name: str
    type: str
    """`string`, `long`, `int`, `float`, `boolean`, `binary`, `timestamptz`, `fixed[n]`, `list<string>`."""
    help: str
    required: bool = True


_C = WarehouseColumn
EPISODES: tuple[WarehouseColumn, ...] = (
    _C("episode_id", "fixed[16]", "UUID bytes"),
    _C("profile", "string", "rendition profile: vla, world, ..."),
    _C("seq", "long", "rises with each change; the highest of a rendition is current"),
    _C("row_version", "int", "of the episode in the catalog"),
    _C("state", "string", "ingested, validated, published, quarantined or retired"),
    _C("tombstone", "boolean", "purged, or lost by a restore: never offer it"),
    _C("vendor", "string", "who recorded it"),
    _C("vendor_key", "string", "the vendor's own name of the episode"),
    _C("delivery", "string", "the drop it came with; empty where unknown"),
    _C("robot", "string", "robot model"),
    _C("task", "string", "task name"),
    _C("instruction", "string", "language instruction, may be empty"),
    _C("language", "string", "of the instruction, such as en"),
    _C("split", "string", "train, val, test or a site's own"),
    _C("site", "string", "where it was recorded; may be empty"),
    _C("object_key", "string", "key in the object store"),
    _C("sha256", "fixed[32]", "of the object"),
    _C("size_bytes", "long", "of the object"),
    _C("t_first_ns", "long", "first message on the episode's own clock"),
    _C("duration_ns", "long", "last message minus first"),
    _C("frames", "int", "frames of the reference camera; 0 without cameras"),
    _C("fps", "float", "nominal rate of the reference camera; 0 without cameras"),
    _C("frames_suspect", "boolean", "frames and duration times fps differ by more than 2 frames and 2 %"),
    _C("gop_frames", "int", "frames per GOP of the reference camera", required=False),
    _C("groups", "list<string>", "topic groups of the file, by name"),
    _C("topics", "string", "topic table as JSON, the same for all episodes of one robot"),
    _C("layout", "binary", "chunk tables of all groups, packed; null means the sidecar", required=False),
    _C("quality", "string", "JSON: check name to score, of the newest version of each check"),
    _C("quality_passed", "boolean", "every critical check passed"),
    _C("failed_checks", "list<string>", "names of checks that failed, critical or not"),
    _C("labels", "string", "JSON: label set to list of labels"),
    _C("degraded_steps", "list<string>", "non-critical steps that failed for it"),
    _C("recorded_at", "timestamptz", "when the recording began", required=False),
    _C("ingested_at", "timestamptz", "when the catalog first knew it"),
    _C("updated_at", "timestamptz", "when this version came to be"),
)
"""In order of field ids."""


def arrow_schema() -> pa.Schema:
    """The Arrow schema of a batch for `ExportTarget.append`, field ids in the metadata."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "long": pa.int64(),
        "int": pa.int32(),
        "float": pa.float32(),
        "boolean": pa.bool_(),
        "binary": pa.binary(),
        "timestamptz": pa.timestamp("us", tz="UTC"),
        "fixed[16]": pa.binary(16),
        "fixed[32]": pa.binary(32),
        "list<string>": pa.list_(pa.field("element", pa.string(), nullable=False)),
    }
    return pa.schema([pa.field(c.name, types[c.type], nullable=not c.required) for c in EPISODES])


def iceberg_schema() -> Schema:
    """The Iceberg schema; list elements take ids from 1001 up, so that columns keep counting from 1."""
    from pyiceberg import types as ice
    from pyiceberg.schema import Schema

    plain: dict[str, ice.IcebergType] = {
        "string": ice.StringType(),
        "long": ice.LongType(),
        "int": ice.IntegerType(),
        "float": ice.FloatType(),
        "boolean": ice.BooleanType(),
        "binary": ice.BinaryType(),
        "timestamptz": ice.TimestamptzType(),
        "fixed[16]": ice.FixedType(16),
        "fixed[32]": ice.FixedType(32),
    }
    fields = []
    for number, column in enumerate(EPISODES, 1):
        kind = plain.get(column.type) or ice.ListType(1000 + number, ice.StringType(), element_required=True)
        fields.append(ice.NestedField(number, column.name, kind, required=column.required, doc=column.help))
    return Schema(*fields)
