"""Records, the warehouse's schema, and what of the catalog reaches it."""

from __future__ import annotations

import json
import subprocess
import sys
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.contracts import MANIFEST_COLUMNS
from kinemill.errors import DataError
from kinemill.pipelines.catalog.database import public_url, sqlalchemy_url
from kinemill.pipelines.catalog.models import Base
from kinemill.pipelines.catalog.records import plain_json, plain_text, uuid7
from kinemill.pipelines.catalog.register import pack_receipt, unpack_receipt
from kinemill.pipelines.warehouse.read import Span, export_sql
from kinemill.pipelines.warehouse.schema import EPISODES, arrow_schema, iceberg_schema
from kinemill.pipelines.warehouse.watermark import Watermark
from support.catalog import receipt_of


def test_uuid7_is_a_version_7_uuid_in_order_of_time() -> None:
    made = [uuid7() for _ in range(2000)]
    assert len(set(made)) == 2000
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert made[0][:8] <= made[-1][:8]


@given(st.text())
def test_text_is_taken_as_it_is_or_refused(text: str) -> None:
    if "\0" in text or any(0xD800 <= ord(c) < 0xE000 for c in text):
        with pytest.raises(DataError):
            plain_text(text, "x")
    else:
        assert plain_text(text, "x") == text


@given(st.dictionaries(st.text(max_size=5), st.recursive(st.none() | st.text(max_size=5) | st.integers(), st.lists)))
def test_json_is_taken_as_it_is_or_refused(value: dict[str, object]) -> None:
    text = json.dumps(value, ensure_ascii=False)
    bad = "\\u0000" in text or any(0xD800 <= ord(c) < 0xE000 for c in text)
    try:
        found = plain_json(value, "x")
    except DataError:
        assert bad
    else:
        assert json.loads(found) == value


def test_json_that_is_none_is_refused() -> None:
    for value in ({"a": float("nan")}, {"a": object()}, {"a": b"x"}):
        with pytest.raises(DataError):
            plain_json(value, "x")
    assert plain_json({"a": "\\u0000"}, "x") == '{"a": "\\\\u0000"}', "a backslash is no NUL"


def test_receipts_are_packed_without_loss() -> None:
    receipt = receipt_of(uuid7(), chunks=50)
    packed = pack_receipt(receipt)
    assert unpack_receipt(packed) == receipt


def test_urls_in_logs_hold_no_password() -> None:
    assert public_url("postgresql://u:secret@h:5/d?x=1") == "postgresql://u@h:5/d?x=1"
    assert public_url("postgresql://u@/d?host=/run") == "postgresql://u@/d?host=/run"
    assert public_url("postgresql:///d?user=u&password=secret&port=5") == "postgresql:///d?user=u&port=5"
    assert public_url("postgresql://u:secret@h/d?pass%77ord=secret&sslpassword=s") == "postgresql://u@h/d"
    assert sqlalchemy_url("postgres://u@h/d") == "postgresql+psycopg://u@h/d"


# ---- the warehouse


def test_a_manifest_finds_all_its_columns_in_the_warehouse() -> None:
    names = {column.name for column in EPISODES}
    needed = {column.name for column in MANIFEST_COLUMNS} - {"weight"}
    assert needed <= names, "weight alone comes from the curation spec"


def test_both_schemas_are_the_same_table() -> None:
    arrow, iceberg = arrow_schema(), iceberg_schema()
    assert arrow.names == [field.name for field in iceberg.fields] == [column.name for column in EPISODES]
    assert [field.field_id for field in iceberg.fields] == list(range(1, len(EPISODES) + 1))
    assert [field.nullable for field in arrow] == [not field.required for field in iceberg.fields]
    assert all(column.help for column in EPISODES)


FIRST = ("episode_id", "profile", "seq", "row_version", "state", "tombstone", "vendor")


def test_field_ids_never_move() -> None:
    found = {field.name: field.field_id for field in iceberg_schema().fields}
    assert [found[name] for name in FIRST] == list(range(1, len(FIRST) + 1))
    assert found["updated_at"] == 35


NOT_EXPORTED = {
    "episode": {"batch", "ended_at", "purged_at"},
    "rendition": {"id", "episode_id", "etag", "current", "created_at", "verified_at"},
}
"""Columns that curation has no use for; everything else of these tables is exported."""


@pytest.mark.parametrize("table", ["episode", "rendition"])
def test_every_column_is_exported_or_said_not_to_be(table: str) -> None:
    sql = export_sql(Span((0, 0), (1, 1)))
    alias = {"episode": "e", "rendition": "r"}[table]
    columns = {column.name for column in Base.metadata.tables[f"kinemill.{table}"].columns}
    exported = {name for name in columns if f"{alias}.{name}" in sql.split("\nselect ", 1)[1]}
    assert columns - exported <= NOT_EXPORTED[table], "a new column: export it, or add it to NOT_EXPORTED with a reason"


def test_a_watermark_rides_in_a_snapshot_s_summary() -> None:
    mark = Watermark("cluster/1/5", 2**40, 17)
    assert Watermark.from_properties({**mark.properties(), "added-records": "5"}) == mark
    assert Watermark.from_properties({"added-records": "5"}) is None


def test_importing_the_catalog_loads_no_database() -> None:
    script = (
        "import sys, kinemill.pipelines.catalog; print(sorted({'sqlalchemy', 'psycopg', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
