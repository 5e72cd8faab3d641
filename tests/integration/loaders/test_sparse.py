"""`SparseWindows` on real episodes: what it returns is what was recorded."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, RandomSampler

from kinemill.errors import ConfigError, UsageError
from kinemill.loaders import Manifest, SparseWindows, collate, seconds, steps
from kinemill.store.files import FileStore
from support.loaders import MadeEpisode, make_episode, manifest_of, step_of

FRAMES = [60, 47, 33]
WINDOWS = {
    "/cam/0": steps(0),
    "/cam/1": steps(-1, 0),
    "/state": steps(0),
    "/action": steps(range(20)),
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("sparse")
    store = FileStore(folder / "bucket")
    made = [make_episode(store, seed=i, frames=n) for i, n in enumerate(FRAMES)]
    path = manifest_of(folder / "m.arrow", [m.row for m in made])
    return store, made, path


@pytest.fixture
def data(corpus) -> SparseWindows:
    store, _, path = corpus
    return SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url)


def test_every_frame_of_every_episode_is_a_sample(data: SparseWindows) -> None:
    assert len(data) == sum(FRAMES)


def test_a_sample_holds_the_frames_and_rows_around_its_anchor(data: SparseWindows) -> None:
    for sample, episode, step in ((0, 0, 0), (1, 0, 1), (37, 0, 37), (60, 1, 0), (100, 1, 40), (107 + 12, 2, 12)):
        got = data[sample]
        assert got["valid"]
        assert got["/cam/0"].shape == (1, 48, 64, 3)
        assert got["/cam/0"].dtype == torch.uint8
        assert got["/cam/0"].is_contiguous()
        assert step_of(got["/cam/0"][0].numpy()) == step
        assert step_of(got["/cam/1"][1].numpy()) == step
        assert got["/cam/1_is_pad"].tolist() == [step == 0, False]
        assert step_of(got["/cam/1"][0].numpy()) == max(0, step - 1)
        # the row at or before the frame's time, and the twenty from there on
        row = int(step / 30 * 100 + 1e-6)
        assert got["/state"].tolist()[0] == pytest.approx([row / 100, episode, row], abs=1e-5)
        rows = round(FRAMES[episode] / 30 * 100)
        expected = [min(row + i, rows - 1) for i in range(20)]
        assert got["/action"][:, 2].tolist() == [-r for r in expected]
        assert got["/action_is_pad"].tolist() == [row + i >= rows for i in range(20)]
        assert got["instruction"] == "pick up the cube"


def test_the_last_frames_actions_are_padding_not_the_next_episode(data: SparseWindows) -> None:
    got = data[59]
    assert got["/action_is_pad"].sum() == 16  # rows 196..199 are left
    assert got["/action"][:, 1].unique().tolist() == [0.0]


def test_a_batch_equals_its_samples(data: SparseWindows) -> None:
    numbers = [5, 107, 0, 59, 61, 5]
    batch = data.read(numbers).batch
    for i, n in enumerate(numbers):
        one = data[n]
        for key, value in one.items():
            if key == "seconds":
                continue  # what each reading took
            got = batch[key][i]
            assert torch.equal(got, value) if isinstance(value, torch.Tensor) else got == value, key


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_dataloader_with_torchs_own_sampler_works(data: SparseWindows, workers: int) -> None:
    generator = torch.Generator().manual_seed(0)
    loader = DataLoader(
        data, batch_size=16, sampler=RandomSampler(data, generator=generator), num_workers=workers, collate_fn=collate
    )
    seen: list[int] = []
    for batch in loader:
        seen += batch["index"].tolist()
        for i, n in enumerate(batch["index"].tolist()):
            assert step_of(batch["/cam/0"][i, 0].numpy()) == data.locate(n).step
    assert sorted(seen) == list(range(len(data)))


def test_torchs_default_collate_works_too(data: SparseWindows) -> None:
    batch = next(iter(DataLoader(data, batch_size=4)))
    assert batch["/cam/1"].shape == (4, 2, 48, 64, 3)
    assert batch["instruction"] == ["pick up the cube"] * 4


def test_windows_in_seconds_and_lerobots_delta_timestamps_agree(corpus) -> None:
    store, _, path = corpus
    manifest = Manifest.from_file(path)
    deltas = {"/cam/0": [-0.1, 0.0], "/action": [i / 100 for i in range(10)], "/state": [0.0]}
    ours = SparseWindows(manifest, {k: seconds(v) for k, v in deltas.items()}, store=store.url, times=True)
    theirs = SparseWindows(manifest, delta_timestamps=deltas, store=store.url, times=True)
    for n in (0, 2, 3, 30, 59, 75):
        a, b = ours[n], theirs[n]
        assert all(torch.equal(a[k], b[k]) for k in a if isinstance(a[k], torch.Tensor) and k != "seconds")
        step = ours.locate(n).step
        assert a["/cam/0_is_pad"].tolist() == [step < 3, False]
        assert step_of(a["/cam/0"][1].numpy()) == step
        if step >= 3:
            assert step_of(a["/cam/0"][0].numpy()) == step - 3
        assert a["/cam/0_t_ns"][1] == a["anchor_ns"]


def test_outside_the_tolerance_is_padding_not_an_error(corpus) -> None:
    store, _, path = corpus
    # frames are 33.3 ms apart: half a period away nothing lies within 1 ms
    data = SparseWindows(Manifest.from_file(path), {"/cam/0": seconds(0.0, 0.0166, tolerance_s=0.001)}, store=store.url)
    got = data[10]
    assert got["valid"]
    assert got["/cam/0_is_pad"].tolist() == [False, True]


def test_a_window_longer_than_the_episode_is_padded(corpus) -> None:
    store, _, path = corpus
    data = SparseWindows(
        Manifest.from_file(path),
        {"/cam/0": steps(range(-50, 60, 10)), "/state": steps(range(-500, 500, 100))},
        store=store.url,
    )
    got = data[len(data) - 1]  # step 32 of 33
    assert got["/cam/0_is_pad"].tolist() == [32 + k < 0 or 32 + k > 32 for k in range(-50, 60, 10)]
    assert [step_of(f.numpy()) for f in got["/cam/0"]] == [min(max(32 + k, 0), 32) for k in range(-50, 60, 10)]
    assert got["/state_is_pad"].tolist() == [not 0 <= 106 + k < 110 for k in range(-500, 500, 100)]


def test_drop_first_last_and_stride(corpus) -> None:
    store, _, path = corpus
    data = SparseWindows(
        Manifest.from_file(path), {"/cam/0": steps(0)}, store=store.url, drop_first=5, drop_last=10, stride=7
    )
    wanted = [(e, s) for e, n in enumerate(FRAMES) for s in range(5, n - 10, 7)]
    assert [(data.locate(i).row, data.locate(i).step) for i in range(len(data))] == wanted
    assert [step_of(data[i]["/cam/0"][0].numpy()) for i in range(len(data))] == [s for _, s in wanted]


def test_keys_may_differ_from_topics_and_cameras_are_a_subset(corpus) -> None:
    store, _, path = corpus
    data = SparseWindows(
        Manifest.from_file(path),
        {"observation.images.front": steps(0), "action": steps(0)},
        topics={"observation.images.front": "/cam/1", "action": "/action"},
        store=store.url,
    )
    got = data[7]
    assert step_of(got["observation.images.front"][0].numpy()) == 7
    assert set(got) >= {"observation.images.front", "action", "action_is_pad"}
    assert not any("/cam" in key for key in got)


def test_an_unknown_topic_is_named_with_the_nearest(corpus) -> None:
    store, _, path = corpus
    with pytest.raises(ConfigError, match="did you mean '/action'"):
        SparseWindows(Manifest.from_file(path), {"/actions": steps(0)}, store=store.url)
    with pytest.raises(UsageError, match="windows= or delta_timestamps="):
        SparseWindows(Manifest.from_file(path), store=store.url)
    with pytest.raises(UsageError, match="no windows"):
        SparseWindows(Manifest.from_file(path), {}, store=store.url)


def test_it_pickles_small_whatever_it_has_read(data: SparseWindows) -> None:
    data.read([1, 2, 3])
    blob = pickle.dumps(data)
    assert len(blob) < 4096
    again = pickle.loads(blob)  # noqa: S301 - our own bytes
    assert step_of(again[9]["/cam/0"][0].numpy()) == 9


def test_jittered_clocks_shift_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    made = make_episode(store, seed=4, frames=90, jitter_ns=6_000_000)
    data = SparseWindows(
        Manifest.from_file(manifest_of(tmp_path / "m.arrow", [made.row])),
        {"/cam/0": steps(0), "/cam/1": steps(0, 1), "/state": steps(-1, 0, 1)},
        store=store.url,
        times=True,
    )
    for n in range(0, 90, 7):
        got = data[n]
        assert step_of(got["/cam/0"][0].numpy()) == n
        assert step_of(got["/cam/1"][0].numpy()) == n
        rows = got["/state"][:, 2].tolist()
        if not got["/state_is_pad"].any():
            assert rows == [rows[1] - 1, rows[1], rows[1] + 1]
        # the row in the middle is the last one at or before the frame
        assert got["/state_is_pad"][1] or got["/state_t_ns"][1] <= got["/cam/0_t_ns"][0]
        if not got["/state_is_pad"].any():
            assert got["/state_t_ns"][2] > got["/cam/0_t_ns"][0]


def test_an_empty_manifest_is_an_empty_set(tmp_path: Path) -> None:
    from support.loaders import manifest_columns, write_manifest

    manifest = Manifest.from_file(write_manifest(tmp_path / "e.arrow", manifest_columns(0)))
    data = SparseWindows(manifest, WINDOWS, store="memory://none")
    assert len(data) == 0
    assert list(data.loader(4)) == []


def test_the_sidecar_is_fetched_once_an_episode(tmp_path: Path) -> None:
    from kinemill.contracts import layout_key
    from support.loaders import FolderStore

    (tmp_path / "bucket").mkdir()
    store = FolderStore(tmp_path / "bucket")
    made: list[MadeEpisode] = [make_episode(store, seed=i) for i in range(2)]
    for one in made:
        store.put_if_absent(layout_key(one.key), one.layout)
    path = manifest_of(tmp_path / "m.arrow", [m.row for m in made], sidecar=True)
    data = SparseWindows(Manifest.from_file(path), {"/cam/0": steps(0), "/action": steps(range(5))}, store=store)
    store.forget()
    assert data[12]["valid"]
    assert store.requests() == {"get": 1, "get_range": 2}
    assert data[30]["valid"]
    assert store.requests() == {"get": 1, "get_range": 4}
    assert data[70]["valid"]
    assert store.requests() == {"get": 2, "get_range": 6}


def test_values_of_different_dtypes_stay_apart(data: SparseWindows) -> None:
    got = data[3]
    assert got["/action"].dtype == torch.float32
    assert got["/action_is_pad"].dtype == torch.bool
    assert np.isfinite(got["/action"].numpy()).all()


# ---- episodes that differ


def test_a_first_episode_without_cameras_stands_in_nobodys_way(tmp_path: Path) -> None:
    # Given a manifest that starts with a recording of states only
    store = FileStore(tmp_path / "bucket")
    blind = make_episode(store, seed=1, frames=50, cameras=0)
    seeing = make_episode(store, seed=2, frames=20)
    path = manifest_of(tmp_path / "m.arrow", [blind.row, seeing.row])
    # When windows of cameras are asked for, without a word on shapes
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url)
    # Then every frame of the other is a sample
    assert len(data) == 20
    assert {one["episode_id"] for one in map(data.__getitem__, range(0, 20, 5))} == {str(seeing.id)}
    assert step_of(data[7]["/cam/0"][0].numpy()) == 7


def test_cameras_that_an_episode_lacks_are_zeros_and_padding(tmp_path: Path) -> None:
    # Given three episodes, of which the second alone has a second camera, and in another size
    store = FileStore(tmp_path / "bucket")
    made = [
        make_episode(store, seed=1, frames=10, cameras=1),
        make_episode(store, seed=2, frames=10, cameras=2),
        make_episode(store, seed=3, frames=10, cameras=1),
    ]
    path = manifest_of(tmp_path / "m.arrow", [one.row for one in made])
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url)
    # When all are read
    batch = data.read(range(30)).batch
    # Then the camera is there where it was recorded, and padding elsewhere; no sample is masked for it
    assert batch["valid"].all()
    has = torch.tensor([10 <= i < 20 for i in range(30)])
    assert (batch["/cam/1_is_pad"][:, 1] == ~has).all()
    assert not batch["/cam/1"][~has].any()
    assert step_of(batch["/cam/1"][13, 1].numpy()) == 3
    assert data.engine.faults.absent == {"/cam/1": 20}


def test_a_filter_decides_which_episode_is_the_first(tmp_path: Path) -> None:
    # Given two robots whose cameras differ in size
    store = FileStore(tmp_path / "bucket")
    made = [
        make_episode(store, seed=1, frames=10, robot="small"),
        make_episode(store, seed=2, frames=12, robot="large", size=(128, 96)),
    ]
    path = manifest_of(tmp_path / "m.arrow", [one.row for one in made])
    # When one of them is chosen
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url, where={"robot": "large"})
    # Then shapes are its
    assert data[3]["/cam/0"].shape == (1, 96, 128, 3)
    assert data[3]["valid"]
