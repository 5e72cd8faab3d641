"""`Clips`, resizing, planes, normalisation, transforms and LeRobot-shaped items on real episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from kinemill.errors import UsageError
from kinemill.loaders import (
    Clips,
    LeRobotItems,
    Manifest,
    SparseWindows,
    TopicStatistics,
    compute_statistics,
    steps,
    yuv420_to_rgb,
)
from kinemill.loaders.transforms import RandomCrop
from kinemill.manifest.statistics import dump_statistics
from kinemill.store.files import FileStore
from support.loaders import make_episode, manifest_of, step_of

FRAMES = [50, 23, 8]
STATISTICS = {
    "/action": TopicStatistics.of(np.stack([np.linspace(-2, 0, 50), np.arange(50.0), np.arange(50.0) * 2], 1))
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("clips")
    store = FileStore(folder / "bucket")
    made = [make_episode(store, seed=i, frames=n) for i, n in enumerate(FRAMES)]
    path = manifest_of(folder / "m.arrow", [m.row for m in made], statistics=dump_statistics(STATISTICS))
    return store, made, Manifest.from_file(path)


def test_clips_start_on_gop_boundaries_and_are_contiguous(corpus) -> None:
    store, _, manifest = corpus
    clips = Clips(manifest, ["/cam/0", "/cam/1"], frames=12, store=store.url, also={"/action": steps(range(3))})
    starts = [(clips.locate(i).row, clips.locate(i).step) for i in range(len(clips))]
    assert starts == [(0, s) for s in range(0, 39, 5)] + [(1, s) for s in range(0, 12, 5)]
    for i, (_, start) in enumerate(starts):
        got = clips[i]
        for key in ("/cam/0", "/cam/1"):
            assert [step_of(f) for f in got[key].numpy()] == list(range(start, start + 12))
            assert not got[f"{key}_is_pad"].any()
            assert got[key].is_contiguous()
        assert got["/action"].shape == (3, 3)


def test_any_start_and_stride(corpus) -> None:
    store, _, manifest = corpus
    clips = Clips(manifest, ["/cam/0"], frames=6, stride=3, align="any", hop=4, store=store.url)
    assert len(clips) == 1 + (50 - 16) // 4 + 1 + (23 - 16) // 4
    assert [step_of(f) for f in clips[2]["/cam/0"].numpy()] == list(range(8, 26, 3))


def test_short_episodes_are_skipped_or_padded(corpus) -> None:
    store, _, manifest = corpus
    padded = Clips(manifest, ["/cam/0"], frames=12, short="pad", store=store.url)
    got = padded[len(padded) - 1]
    assert padded.locate(len(padded) - 1).row == 2
    assert got["/cam/0_is_pad"].tolist() == [False] * 8 + [True] * 4
    assert [step_of(f) for f in got["/cam/0"].numpy()] == [*range(8), 7, 7, 7, 7]


@pytest.mark.parametrize(
    "bad", [{"align": "x"}, {"short": "x"}, {"frames": 0}, {"hop": 3}, {"gop": 0}, {"stride": 0}, {"cameras": []}]
)
def test_clip_settings_that_contradict_are_refused(corpus, bad: dict) -> None:
    store, _, manifest = corpus
    options = {"cameras": ["/cam/0"], "frames": 4, "store": store.url, **bad}
    cameras = options.pop("cameras")
    with pytest.raises(UsageError):
        Clips(manifest, cameras, **options)


def test_clips_resume_like_everything_else(corpus) -> None:
    store, _, manifest = corpus
    clips = Clips(manifest, ["/cam/0"], frames=5, align="any", store=store.url)
    expected = [b["index"].tolist() for b in clips.loader(4)]
    loader = clips.loader(4, workers=2)
    got = []
    for batch in loader:
        got.append(batch["index"].tolist())
        if len(got) == 3:
            break
    other = clips.loader(4)
    other.load_state_dict(loader.state_dict())
    assert got + [b["index"].tolist() for b in other] == expected


def test_resize_and_planes(corpus) -> None:
    store, _, manifest = corpus
    whole = SparseWindows(manifest, {"/cam/0": steps(0, 1)}, store=store.url)[7]["/cam/0"].numpy()
    small = SparseWindows(manifest, {"/cam/0": steps(0, 1)}, store=store.url, resize=(24, 32))[7]["/cam/0"].numpy()
    assert small.shape == (2, 24, 32, 3)
    averaged = whole.reshape(2, 24, 2, 32, 2, 3).mean((2, 4))
    assert np.abs(averaged - small).mean() < 3
    planes = SparseWindows(manifest, {"/cam/0": steps(0, 1)}, store=store.url, pixels="yuv420")[7]["/cam/0"]
    assert planes.shape == (2, 72, 64)
    assert np.abs(yuv420_to_rgb(planes).numpy().astype(int) - whole).mean() < 3
    gray = SparseWindows(manifest, {"/cam/0": steps(0)}, store=store.url, pixels="gray")[7]["/cam/0"]
    assert gray.shape == (1, 48, 64)


def test_rows_are_normalised_by_the_manifests_statistics(corpus) -> None:
    store, _, manifest = corpus
    plain = SparseWindows(manifest, {"/action": steps(range(5))}, store=store.url)
    normed = SparseWindows(manifest, {"/action": steps(range(5))}, store=store.url, normalise="mean_std")
    a, b = plain[9]["/action"].numpy(), normed[9]["/action"].numpy()
    told = STATISTICS["/action"]
    assert np.allclose(b, (a - told.mean) / told.std, atol=1e-4)
    normaliser = normed.normaliser("/action")
    assert normaliser is not None
    assert np.allclose(normaliser.undo(b), a, atol=1e-4)
    with pytest.raises(UsageError, match="no statistics of '/state'"):
        SparseWindows(manifest, {"/state": steps(0)}, store=store.url, normalise="mean_std")


def test_statistics_are_computed_from_what_is_no_padding(corpus) -> None:
    store, _, manifest = corpus
    data = SparseWindows(manifest, {"/state": steps(0, 500)}, store=store.url)
    got = compute_statistics(data)["/state"]
    rows = np.concatenate([data[i]["/state"][:1].numpy() for i in range(len(data))])
    assert got.count == len(data)
    assert np.allclose(got.mean, rows.mean(0), atol=1e-5)
    normed = SparseWindows(
        manifest, {"/state": steps(0)}, store=store.url, normalise="mean_std", statistics={"/state": got}
    )
    with pytest.raises(UsageError, match="normalised or transformed already"):
        compute_statistics(normed)


def test_transforms_are_the_same_in_every_worker_and_differ_by_epoch(corpus) -> None:
    store, _, manifest = corpus
    data = SparseWindows(
        manifest, {"/cam/0": steps(0)}, store=store.url, transforms={"/cam/0": RandomCrop(20, 30)}, seed=1
    )
    alone = {n: f for b in data.loader(8) for n, f in zip(b["index"].tolist(), b["/cam/0"], strict=True)}
    loader = data.loader(8, workers=2)
    forked = {n: f for b in loader for n, f in zip(b["index"].tolist(), b["/cam/0"], strict=True)}
    again = {n: f for b in loader for n, f in zip(b["index"].tolist(), b["/cam/0"], strict=True)}
    assert all(torch.equal(alone[n], forked[n]) for n in alone if n in forked)
    common = set(forked) & set(again)
    assert any(not torch.equal(forked[n], again[n]) for n in common)
    assert data[0]["/cam/0"].shape == (1, 20, 30, 3)
    data.transforms = {}
    assert data[0]["/cam/0"].shape == (1, 48, 64, 3)


def test_lerobot_shaped_items(corpus) -> None:
    store, _, manifest = corpus
    items = LeRobotItems(
        manifest,
        {"observation.images.front": "/cam/0", "observation.state": "/state", "action": "/action"},
        delta_timestamps={"action": [i / 100 for i in range(8)], "observation.images.front": [-1 / 30, 0.0]},
        store=store.url,
    )
    got = items[3]
    assert got["observation.images.front"].shape == (2, 3, 48, 64)
    assert got["observation.images.front"].dtype == torch.float32
    assert got["observation.images.front_is_pad"].tolist() == [False, False]
    assert got["observation.state"].shape == (3,)
    assert "observation.state_is_pad" not in got
    assert got["action"].shape == (8, 3)
    assert (got["frame_index"], got["episode_index"], got["index"]) == (3, 0, 3)
    assert got["timestamp"].item() == pytest.approx(0.1)
    assert got["task"] == "pick up the cube"
    last = items[len(items) - 1]
    assert last["episode_index"] == 2
    assert last["action_is_pad"].tolist()[-1]
    batch = next(iter(torch.utils.data.DataLoader(items, batch_size=4)))
    assert batch["action_is_pad"].shape == (4, 8)
    assert items[0]["observation.images.front_is_pad"].tolist() == [True, False]


def test_frames_of_two_sizes_need_a_resize(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    rows = [make_episode(store, seed=i, frames=6, size=size).row for i, size in enumerate(((64, 48), (32, 32)))]
    manifest = Manifest.from_file(manifest_of(tmp_path / "m.arrow", rows))
    with pytest.raises(UsageError, match="resize="):
        SparseWindows(manifest, {"/cam/0": steps(0)}, store=store.url)[8]
    both = SparseWindows(manifest, {"/cam/0": steps(0)}, store=store.url, resize=(24, 24))
    assert both.read([2, 8]).batch["/cam/0"].shape == (2, 1, 24, 24, 3)
    assert both.read([2, 8]).batch["valid"].all()


def test_a_recording_without_cameras_has_anchors_at_a_rate(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    made = make_episode(store, seed=1, frames=300, cameras=0, state_hz=100.0)
    manifest = Manifest.from_file(manifest_of(tmp_path / "m.arrow", [made.row]))
    assert len(SparseWindows(manifest, {"/state": steps(0)}, store=store.url)) == 0
    data = SparseWindows(manifest, {"/state": steps(0, 1)}, store=store.url, anchor_hz=10.0)
    assert len(data) == 30
    assert data[7]["/state"][:, 2].tolist() == [70.0, 71.0]
