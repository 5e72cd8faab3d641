"""The Arrow schema of a manifest, made from the contract's type texts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kinemill.contracts import MANIFEST_COLUMNS, MANIFEST_VERSION
from kinemill.errors import ContractError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["METADATA_PREFIX", "arrow_type", "dictionary_fields", "manifest_schema"]

METADATA_PREFIX = "kinemill.manifest."
"""Of the keys in the schema's metadata: version, rows, seed, snapshot_id, spec_sha256, ..."""

_DICTIONARY = re.compile(r"dictionary<(int8|int16|int32),string>")
_FIXED = re.compile(r"fixed_size_binary\[(\d+)\]")


def arrow_type(text: str) -> pa.DataType:
    """The type that a contract's text names.

    Raises:
        ContractError: A text that names none.
    """
    import pyarrow as pa

    if match := _DICTIONARY.fullmatch(text):
        index: Any = {"int8": pa.int8(), "int16": pa.int16(), "int32": pa.int32()}[match[1]]
        words: pa.DataType = pa.dictionary(index, pa.string())
        return words
    if match := _FIXED.fullmatch(text):
        return pa.binary(int(match[1]))
    plain: dict[str, Any] = {
        "int64": pa.int64(),
        "int32": pa.int32(),
        "float32": pa.float32(),
        "large_binary": pa.large_binary(),
    }
    if text not in plain:
        raise ContractError(f"manifest column type {text!r} has no Arrow form here")
    found: pa.DataType = plain[text]
    return found


def dictionary_fields() -> dict[str, int]:
    """Dictionary columns and how many words each can hold."""
    room = {"int8": 1 << 7, "int16": 1 << 15, "int32": 1 << 31}
    found = ((c.name, _DICTIONARY.fullmatch(c.type)) for c in MANIFEST_COLUMNS)
    return {name: room[match[1]] for name, match in found if match is not None}


def manifest_schema(metadata: Mapping[str, str] | None = None) -> pa.Schema:
    """The schema, with `metadata` under `METADATA_PREFIX` beside the version."""
    import pyarrow as pa

    told = {"version": str(MANIFEST_VERSION), **(metadata or {})}
    fields = [pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in MANIFEST_COLUMNS]
    return pa.schema(fields, metadata={METADATA_PREFIX + k: told[k] for k in sorted(told)})
