"""Manifest files: the same rows give the same bytes, however they come, and readers of both floors agree."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinemill.contracts import MANIFEST_COLUMNS, MANIFEST_VERSION
from kinemill.errors import ConflictError, ContractError, CorruptError, LimitError, NotFoundError, UnsupportedError
from kinemill.manifest import (
    ManifestFile,
    ManifestPackage,
    ManifestWriter,
    WrittenManifest,
    dictionary_fields,
    find_manifest,
    list_manifests,
    manifest_schema,
    publish_manifest,
)
from kinemill.store import MemoryStore

WORDS = {
    "profile": ["vla"],
    "vendor": ["b", "a"],
    "robot": ["arm"],
    "task": ["reach", "push"],
    "instruction": ["", "push it"],
    "split": ["train", "val"],
    "topics": ['{"a": 1}'],
}


def table(rows: int, **changes: Any) -> pa.Table:
    """Rows with plain columns, as an engine gives them."""
    values: dict[str, Any] = {
        "episode_id": pa.array([i.to_bytes(16, "big") for i in range(rows)], pa.binary()),
        "sha256": pa.array([i.to_bytes(32, "big") for i in range(rows)], pa.binary()),
        "layout": pa.array([None if i % 3 == 0 else bytes(i) for i in range(rows)], pa.binary()),
        "size_bytes": list(range(rows)),
        "t_first_ns": [0] * rows,
        "duration_ns": [10**9] * rows,
        "frames": pa.array([60] * rows, pa.int32()),
        "fps": pa.array([20.0] * rows, pa.float32()),
        "weight": pa.array([i / 7 for i in range(rows)], pa.float32()),
    }
    for name, words in WORDS.items():
        values[name] = [words[i % len(words)] for i in range(rows)]
    return pa.table({**values, **changes})


def write(
    path: Path, parts: list[pa.Table], *, words: dict[str, list[str]] | None = None, **more: Any
) -> WrittenManifest:
    with ManifestWriter(path, words or WORDS, metadata={"seed": "7"}, **more) as writer:
        for part in parts:
            writer.add(part)
    return writer.close()


def cut(whole: pa.Table, cuts: list[int]) -> list[pa.Table]:
    edges = sorted({0, whole.num_rows, *(c % (whole.num_rows + 1) for c in cuts)})
    return [whole.slice(a, b - a) for a, b in itertools.pairwise(edges)]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.lists(st.integers(0, 100), max_size=6), order=st.permutations(["a", "b"]))
def test_the_bytes_do_not_depend_on_how_rows_and_words_come(tmp_path: Path, cuts: list[int], order: list[str]) -> None:
    whole = table(37)
    for name in ("one", "two"):
        (tmp_path / name).unlink(missing_ok=True)

    one = write(tmp_path / "one", [whole], batch_rows=10)
    two = write(tmp_path / "two", cut(whole, cuts), words={**WORDS, "vendor": [*order, "a"]}, batch_rows=10)

    assert one.sha256 == two.sha256
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_batches_are_even_uncompressed_and_share_sorted_dictionaries(tmp_path: Path) -> None:
    written = write(tmp_path / "m", cut(table(37), [5, 9]), batch_rows=10)

    with pa.memory_map(str(tmp_path / "m")) as mapped:
        file = pa.ipc.open_file(mapped)
        assert [file.get_batch(i).num_rows for i in range(file.num_record_batches)] == [10, 10, 10, 7]
        assert file.schema.names == [c.name for c in MANIFEST_COLUMNS]
        assert {tuple(file.get_batch(i)["vendor"].dictionary.to_pylist()) for i in range(4)} == {("a", "b")}
        rows = file.read_all()
    assert rows["vendor"].to_pylist()[:3] == ["b", "a", "b"]
    assert rows["layout"].null_count == 13
    assert (written.rows, written.size_bytes) == (37, (tmp_path / "m").stat().st_size)


def test_an_empty_manifest_is_a_whole_file(tmp_path: Path) -> None:
    assert write(tmp_path / "m", []).rows == 0
    with ManifestFile(tmp_path / "m") as file:
        assert file.table().num_rows == 0


def test_the_reader_of_the_training_job_reads_the_same_rows(tmp_path: Path) -> None:
    from kinemill.loaders.manifest.columns import check_schema
    from kinemill.loaders.manifest.ref import resolve

    store = MemoryStore()
    written = write(tmp_path / "m", [table(5)])
    package = publish_manifest(store, written, ManifestPackage("reach-1", "reach", "0" * 64, 1, 7, "1"))

    ref = resolve(store, "reach-1")

    assert (ref.key, ref.sha256, ref.size_bytes, ref.rows) == (package.key, written.sha256, written.size_bytes, 5)
    with pa.memory_map(str(tmp_path / "m")) as mapped:
        assert check_schema(pa.ipc.open_file(mapped).schema, where="m")["kinemill.manifest.seed"] == "7"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"vendor": ["c"] * 3}, "'c' is not in its dictionary"),
        ({"vendor": ["a", None, "a"]}, "1 nulls"),
        ({"size_bytes": [1, None, 2]}, "1 nulls"),
        ({"episode_id": pa.array([b"short"] * 3, pa.binary())}, "episode_id"),
        ({"frames": ["many"] * 3}, "frames"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_name_and_nothing_stands(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(ContractError, match=says), ManifestWriter(tmp_path / "m", WORDS) as writer:
        writer.add(table(3, **change))

    assert list(tmp_path.iterdir()) == []


def test_a_missing_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="'fps' is missing"), ManifestWriter(tmp_path / "m", WORDS) as writer:
        writer.add(table(3).drop_columns(["fps"]))


def test_more_words_than_a_column_can_count_are_refused(tmp_path: Path) -> None:
    many = {**WORDS, "split": [f"s{i}" for i in range(129)]}

    with pytest.raises(LimitError, match="'split' has 129 different words, room is 128"):
        ManifestWriter(tmp_path / "m", many)


def test_a_dictionary_too_few_or_too_many_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContractError, match="missing"):
        ManifestWriter(tmp_path / "m", {k: v for k, v in WORDS.items() if k != "task"})
    with pytest.raises(ContractError, match="unknown"):
        ManifestWriter(tmp_path / "m", {**WORDS, "colour": []})
    assert set(WORDS) == set(dictionary_fields())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_file_that_is_cut_off_is_told(tmp_path: Path, share: float) -> None:
    write(tmp_path / "m", [table(50)])
    data = (tmp_path / "m").read_bytes()
    (tmp_path / "m").write_bytes(data[: int(len(data) * share)])

    with pytest.raises(CorruptError, match="not a whole Arrow file"):
        ManifestFile(tmp_path / "m")


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    schema = manifest_schema().with_metadata({"kinemill.manifest.version": str(MANIFEST_VERSION + 1)})
    with pa.OSFile(str(tmp_path / "m"), "wb") as sink, pa.ipc.new_file(sink, schema):
        pass

    with pytest.raises(UnsupportedError, match=f"version '{MANIFEST_VERSION + 1}'"):
        ManifestFile(tmp_path / "m")


INFO = ManifestPackage("reach-1", "reach", "0" * 64, 1, 7, "1", splits={"train": 3})


def test_publishing_twice_is_publishing_once(tmp_path: Path) -> None:
    store = MemoryStore()
    written = write(tmp_path / "m", [table(3)])

    first = publish_manifest(store, written, INFO, spec="name: reach\n")
    second = publish_manifest(store, written, INFO, spec="name: reach\n")

    assert first == second == find_manifest(store, "reach-1")
    assert [m.key for m in store.list("manifests/")] == sorted(
        [first.key, first.spec_key, "manifests/reach-1/manifest.json"]
    )
    assert [p.id for p in list_manifests(store)] == ["reach-1"]


def test_manifest_json_is_put_last_and_a_manifest_without_it_is_none(tmp_path: Path) -> None:
    store = MemoryStore()
    written = write(tmp_path / "m", [table(3)])
    publish_manifest(store, written, INFO, spec="x")
    puts = [key for op, key in store.requests if op == "put"]
    assert puts[-1] == "manifests/reach-1/manifest.json"

    store.delete("manifests/reach-1/manifest.json")

    with pytest.raises(NotFoundError, match="written last"):
        find_manifest(store, "reach-1")
    assert publish_manifest(store, written, INFO, spec="x").rows == 3, "a build that was killed is completed"


def test_an_id_never_stands_for_two_contents(tmp_path: Path) -> None:
    store = MemoryStore()
    publish_manifest(store, write(tmp_path / "a", [table(3)]), INFO)

    with pytest.raises(ConflictError, match="other rows"):
        publish_manifest(store, write(tmp_path / "b", [table(4)]), INFO)


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", "x" * 200])
def test_an_id_that_cannot_stand_in_a_key_is_refused(name: str) -> None:
    with pytest.raises(ContractError, match="manifest id"):
        find_manifest(MemoryStore(), name)
