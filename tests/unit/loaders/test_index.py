"""Sample numbers to rows and steps."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from kinemill.errors import UsageError
from kinemill.loaders import index as index_module
from kinemill.loaders.index import SampleIndex
from kinemill.loaders.manifest import Manifest
from support.loaders import manifest_columns, write_manifest


def every_third(frames, fps=None, duration_ns=None):
    return -(-np.maximum(frames.astype(np.int64) - 140, 0) // 3)


@pytest.fixture
def columns():
    return manifest_columns(900)


@pytest.fixture
def manifest(tmp_path: Path, columns, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    monkeypatch.setattr(index_module, "BLOCK_ROWS", 64)
    monkeypatch.setattr(index_module, "BLOCKS_KEPT", 3)
    return Manifest.from_file(write_manifest(tmp_path / "m.arrow", columns, batch_rows=100))


def reference(columns, rows=slice(None)):
    counts = every_third(columns["frames"][rows])
    return [(row, step) for row, n in enumerate(counts.tolist()) for step in range(n)]


def test_every_sample_is_found(manifest: Manifest, columns) -> None:
    index = SampleIndex(manifest, every_third)
    expected = reference(columns)
    assert len(index) == len(expected)
    picks = np.random.default_rng(0).integers(0, len(expected), 500).tolist()
    for i in [0, len(expected) - 1, *picks]:
        assert index.find(i) == expected[i]


def test_a_slice_counts_its_own_rows(manifest: Manifest, columns) -> None:
    index = SampleIndex(manifest.slice(333, 601), every_third)
    expected = reference(columns, slice(333, 601))
    assert [index.find(i) for i in range(0, len(index), 997)] == expected[::997]
    assert len(index) == len(expected)


def test_a_filter_gives_other_rows_no_samples(manifest: Manifest, columns) -> None:
    index = SampleIndex(manifest, every_third, where={"split": "train", "vendor": ["vendor-03", "vendor-05"]})
    rows = {index.find(i)[0] for i in range(0, len(index), 101)}
    assert rows
    assert all(manifest[r].split == "train" and manifest[r].vendor in ("vendor-03", "vendor-05") for r in rows)
    keep = (columns["split"][0] == 0) & np.isin(columns["vendor"][0], [3, 5])
    assert len(index) == int(every_third(columns["frames"])[keep].sum())


def test_a_filter_on_no_column_names_the_nearest(manifest: Manifest) -> None:
    with pytest.raises(UsageError, match="did you mean 'vendor'"):
        SampleIndex(manifest, every_third, where={"vender": "x"})


def test_a_filter_that_nothing_passes_is_empty(manifest: Manifest) -> None:
    assert len(SampleIndex(manifest, every_third, where={"split": "nope"})) == 0


def test_units_round_up_and_the_last_overlaps(manifest: Manifest, columns) -> None:
    index = SampleIndex(manifest, every_third, unit=8)
    counts = every_third(columns["frames"])
    assert len(index) == int((-(-counts // 8)).sum()) * 8
    seen: dict[int, set[int]] = {}
    for i in range(3_000):
        row, step = index.find(i)
        seen.setdefault(row, set()).add(step)
    rows = sorted(seen)[:-1]
    assert all(seen[r] == set(range(counts[r])) for r in rows)


@pytest.mark.parametrize("bad", [-1, 10**12])
def test_a_sample_outside_is_refused(manifest: Manifest, bad: int) -> None:
    with pytest.raises(IndexError):
        SampleIndex(manifest, every_third).find(bad)


def test_it_pickles_small_and_counts_again(manifest: Manifest) -> None:
    index = SampleIndex(manifest, every_third, where={"split": "val"})
    blob = pickle.dumps(index)
    again = pickle.loads(blob)  # noqa: S301 - our own bytes
    assert len(blob) < 4096
    assert again.find(1000) == index.find(1000)
    assert len(again) == len(index)


def test_an_empty_manifest_has_no_samples(tmp_path: Path) -> None:
    manifest = Manifest.from_file(write_manifest(tmp_path / "e.arrow", manifest_columns(0)))
    assert len(SampleIndex(manifest, every_third)) == 0
