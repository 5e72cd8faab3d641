"""Rows, slices and views of a manifest; no server, no second process."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.errors import ConfigError, ContractError, CorruptError, TruncatedError, UnsupportedError, UsageError
from kinemill.loaders.manifest import Manifest, ManifestRef, open_manifest, resolve, shard_bounds
from kinemill.loaders.manifest.manifest import forget_open
from kinemill.store.memory import MemoryStore
from support.loaders import manifest_columns, publish, write_manifest


@pytest.fixture
def columns():
    return manifest_columns(1_000)


@pytest.fixture
def manifest(tmp_path: Path, columns) -> Manifest:
    return Manifest.from_file(write_manifest(tmp_path / "m.arrow", columns, batch_rows=256))


def test_a_row_holds_what_was_written_in_every_batch(manifest: Manifest, columns) -> None:
    for i in (0, 1, 255, 256, 511, 999):
        row = manifest[i]
        codes, words = columns["instruction"]
        assert row.episode_id == columns["episode_id"][i].tobytes()
        assert row.instruction == words[codes[i]]
        assert row.frames == columns["frames"][i]
        assert row.size_bytes == columns["size_bytes"][i]
        assert row.weight == pytest.approx(float(columns["weight"][i]))
        assert row.key.endswith(f"-{row.sha256.hex()[:12]}.mcap")
        assert row.key.split("/")[1] == row.uuid.hex[-2:]


def test_layout_is_bytes_or_none(tmp_path: Path) -> None:
    layouts = [None if i % 3 == 0 else bytes([i]) * (i % 7) for i in range(40)]
    path = write_manifest(tmp_path / "m.arrow", manifest_columns(40), batch_rows=16, layouts=layouts)
    assert [row.layout for row in Manifest.from_file(path)] == layouts


@given(rows=st.integers(0, 10_000), world=st.integers(1, 300))
def test_shards_cover_every_row_once_whatever_the_world(rows: int, world: int) -> None:
    bounds = [shard_bounds(rows, rank, world) for rank in range(world)]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == rows
    assert all(a[1] == b[0] for a, b in itertools.pairwise(bounds))
    sizes = [stop - start for start, stop in bounds]
    assert max(sizes) - min(sizes) <= 1


def test_more_ranks_than_rows_leaves_some_without_and_none_twice(manifest: Manifest) -> None:
    few = manifest.slice(10, 13)
    shards = [few.shard(rank, 8) for rank in range(8)]
    assert sum(map(len, shards)) == 3
    assert sorted(s.start for s in shards if len(s)) == [10, 11, 12]


@pytest.mark.parametrize(("rank", "world"), [(-1, 4), (4, 4), (0, 0)])
def test_a_rank_outside_the_world_is_refused(manifest: Manifest, rank: int, world: int) -> None:
    with pytest.raises(UsageError, match="world size"):
        manifest.shard(rank, world)


def test_a_slice_is_a_view_and_shares_the_mapping(manifest: Manifest) -> None:
    part = manifest.slice(200, 300)
    first = next(part.arrays("frames"))
    whole = next(manifest.arrays("frames"))
    assert np.shares_memory(first, whole)
    assert not first.flags.writeable
    assert part[0] == manifest[200]
    assert part.slice(10, 20)[0] == manifest[210]


def test_arrays_concatenate_to_the_column(manifest: Manifest, columns) -> None:
    part = manifest.slice(100, 900)
    assert (np.concatenate(list(part.arrays("frames"))) == columns["frames"][100:900]).all()
    assert (np.concatenate(list(part.arrays("episode_id"))) == columns["episode_id"][100:900]).all()


@pytest.mark.parametrize("index", [-1, 100])
def test_a_row_outside_a_slice_is_refused(manifest: Manifest, index: int) -> None:
    with pytest.raises(IndexError, match="of 100"):
        manifest.slice(0, 100).row(index)


def test_pickles_small_and_reopens(manifest: Manifest) -> None:
    part = manifest.slice(10, 500)
    blob = pickle.dumps(part)
    forget_open()
    again = pickle.loads(blob)  # noqa: S301 - our own bytes
    assert len(blob) < 4096
    assert again[5] == part[5]
    assert repr(again) == repr(part)


def test_an_empty_manifest_opens_and_has_no_rows(tmp_path: Path) -> None:
    empty = Manifest.from_file(write_manifest(tmp_path / "e.arrow", manifest_columns(0)))
    assert len(empty) == 0
    assert list(empty) == []
    assert len(empty.shard(3, 4)) == 0


def test_all_three_modes_give_the_same_rows(tmp_path: Path, columns) -> None:
    store = MemoryStore("modes")
    layouts = [None if i % 5 else bytes(range(i % 200)) for i in range(1_000)]
    arrow = write_manifest(
        tmp_path / "m.arrow", columns, batch_rows=300, layouts=layouts, parquet=tmp_path / "m.parquet"
    )
    ref = publish(store, arrow, parquet=tmp_path / "m.parquet")
    opened = {
        mode: open_manifest(ref, mode=mode, store=store, folder=tmp_path / "local")
        for mode in ("node_mmap", "remote_parquet", "in_memory")
    }
    rows = {mode: list(manifest) for mode, manifest in opened.items()}
    assert rows["node_mmap"] == rows["remote_parquet"] == rows["in_memory"]
    assert len(rows["node_mmap"]) == 1_000
    for mode, manifest in opened.items():
        assert len(pickle.dumps(manifest.slice(5, 9))) < 4096, mode


def test_an_unknown_mode_is_named_with_the_known_ones(tmp_path: Path) -> None:
    ref = ManifestRef("memory://x", "k", "0" * 64, 1)
    with pytest.raises(ConfigError, match="node_mmap, remote_parquet, in_memory"):
        open_manifest(ref, mode="mmap", store=MemoryStore())


def test_parquet_mode_without_a_parquet_form_says_how_to_make_one(tmp_path: Path, columns) -> None:
    store = MemoryStore("noparquet")
    ref = publish(store, write_manifest(tmp_path / "m.arrow", columns))
    with pytest.raises(ContractError, match="manifest export m1"):
        open_manifest(ref, mode="remote_parquet", store=store)


def test_resolve_finds_an_id_and_says_what_is_missing(tmp_path: Path, columns) -> None:
    store = MemoryStore("resolve")
    ref = publish(store, write_manifest(tmp_path / "m.arrow", columns), id="abc")
    assert resolve(store, "abc") == ref
    assert resolve(store, "manifests/abc/manifest.json") == ref
    with pytest.raises(Exception, match="no manifest 'nope'"):
        resolve(store, "nope")
    store.put_if_absent("manifests/bad/manifest.json", b"[1, 2]")
    with pytest.raises(ContractError, match="not a manifest pointer"):
        resolve(store, "bad")
    store.put_if_absent("manifests/up/manifest.json", b'{"key":"a/b","sha256":"../x","size_bytes":1,"rows":1}')
    with pytest.raises(ContractError, match="64 lower-case hex"):
        resolve(store, "up")


# ---- bad files


def test_a_newer_version_is_refused_by_name(tmp_path: Path, columns) -> None:
    path = write_manifest(tmp_path / "m.arrow", columns, version="7")
    with pytest.raises(UnsupportedError, match=r"version 7, this reader knows 1"):
        Manifest.from_file(path)


def test_a_missing_or_retyped_column_is_named(tmp_path: Path) -> None:
    table = pa.table({"episode_id": pa.array([b"0" * 16], pa.binary(16))})
    with pa.OSFile(str(tmp_path / "m.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ContractError, match="'profile' is missing"):
        Manifest.from_file(tmp_path / "m.arrow")
    table = pa.table({"episode_id": pa.array(["a"])})
    with pa.OSFile(str(tmp_path / "n.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ContractError, match="'episode_id' is string, expected fixed_size_binary"):
        Manifest.from_file(tmp_path / "n.arrow")


@pytest.mark.parametrize("keep", [0, 7, 1000, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, columns, keep: int) -> None:
    path = write_manifest(tmp_path / "m.arrow", columns)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(TruncatedError):
        Manifest.from_file(path)


def test_a_row_count_that_differs_from_the_files_own_is_refused(tmp_path: Path, columns) -> None:
    path = write_manifest(tmp_path / "m.arrow", columns, rows="999")
    with pytest.raises(CorruptError, match="1000 rows, its own metadata says 999"):
        Manifest.from_file(path)


def test_in_memory_checks_the_hash(tmp_path: Path, columns) -> None:
    store = MemoryStore("hash")
    ref = publish(store, write_manifest(tmp_path / "m.arrow", columns))
    wrong = ManifestRef(ref.store, ref.key, "0" * 64, ref.size_bytes)
    with pytest.raises(CorruptError, match="sha256"):
        open_manifest(wrong, mode="in_memory", store=store)
