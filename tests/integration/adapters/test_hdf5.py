"""HDF5 demonstrations: ALOHA's layout and robomimic's, and files that want more than they may."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from kinemill.pipelines.adapters import load_vendor
from support.ingest import codes, disc_at, inspect, judged, read, shared_drops

VENDOR = load_vendor("twinarm_aloha")
ROBOSUITE = load_vendor("robosuite")


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """A good file of one's own, its pictures as JPEG."""
    return Path(shutil.copyfile(shared_drops()["twinarm_aloha"].path / "episode_1.hdf5", tmp_path / "demo.hdf5"))


@pytest.mark.parametrize("name", ["episode_0.hdf5", "episode_1.hdf5"])
def test_raw_and_compressed_pictures_come_out_red_first(name: str) -> None:
    path = shared_drops()["twinarm_aloha"].path / name

    pictures = list(read(path, "hdf5", VENDOR).pictures())

    assert len(pictures) == 120
    assert [p.t_ns for p in pictures[:3]] == [0, 0, 50_000_000]
    seen = [disc_at(p.image) for p in pictures if p.topic == "/cam/scene" and p.image is not None]
    assert sum(s is not None for s in seen) > 55, "with blue and red swapped, nobody would find the disc"


def test_rows_without_a_clock_need_the_vendors_word(demo: Path) -> None:
    assert "no_clock" in codes(judged(demo, "hdf5", replace(VENDOR, time_base="log", fps=None)), "fail")


def test_columns_of_different_length_are_a_fault(demo: Path) -> None:
    with h5py.File(demo, "r+") as file:
        action = file["action"][:-5]
        del file["action"]
        file["action"] = action

    assert "lengths_differ" in codes(judged(demo, "hdf5", VENDOR), "fail")


def test_a_missing_action_is_a_fault(demo: Path) -> None:
    with h5py.File(demo, "r+") as file:
        del file["action"]

    assert "topic_missing" in codes(judged(demo, "hdf5", VENDOR), "fail")


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.99])
def test_cut_off_anywhere_it_is_told(demo: Path, share: float) -> None:
    data = demo.read_bytes()
    demo.write_bytes(data[: int(len(data) * share)])

    assert codes(judged(demo, "hdf5", VENDOR), "fail") & {"truncated", "corrupt", "empty_file", "not_hdf5"}


def test_a_file_that_reads_other_files_is_refused(demo: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["key"] = np.arange(4.0)
    for name, spoil in {
        "link": lambda f: f.__setitem__("stolen", h5py.ExternalLink(str(secret), "/key")),
        "external": lambda f: f.create_dataset("raw", (64,), "u1", external=[("/etc/passwd", 0, 64)]),
        "virtual": lambda f: f.create_virtual_dataset("v", _layout(secret)),
    }.items():
        path = tmp_path / f"{name}.hdf5"
        shutil.copyfile(demo, path)
        with h5py.File(path, "r+") as file:
            spoil(file)
        assert "data_elsewhere" in codes(judged(path, "hdf5", VENDOR), "fail"), name


def _layout(secret: Path) -> h5py.VirtualLayout:
    layout = h5py.VirtualLayout((4,), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "key", (4,))
    return layout


def robomimic(path: Path, *, total: int | None = None, repeats: bool = False) -> Path:
    """Two demonstrations in robomimic's layout."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        for name, rows in (("demo_10", 60), ("demo_2", 40)):
            demo = data.create_group(name)
            states = np.random.default_rng(1).normal(size=(rows, 5))
            states[:, 0] = 0.5 + np.arange(rows) // (2 if repeats else 1) * 0.05
            demo["states"] = states
            demo["actions"] = states[:, 1:4]
            demo.create_dataset("empty", (rows, 0), "f8")
        if total is not None:
            data.attrs["total"] = total
    return path


def test_demonstrations_are_episodes_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    facts = inspect(robomimic(tmp_path / "d.hdf5"), "hdf5", ROBOSUITE)

    assert [e.key for e in facts.episodes] == ["demo_2", "demo_10"]
    assert facts.episodes[0].topic("states").t_first_ns == 500_000_000
    assert facts.episodes[1].duration_s == pytest.approx(2.95)
    assert "zero_width" in facts.codes()


def test_an_attribute_that_promises_more_is_told_and_not_believed(tmp_path: Path) -> None:
    facts = inspect(robomimic(tmp_path / "d.hdf5", total=3901), "hdf5", ROBOSUITE)

    assert "metadata_count_wrong" in codes(facts.findings, "warn")


def test_repeated_stamps_are_counted_not_refused(tmp_path: Path) -> None:
    facts = inspect(robomimic(tmp_path / "d.hdf5", repeats=True), "hdf5", ROBOSUITE)

    assert facts.episodes[0].topic("states").repeated_stamps == 20
    assert codes(judged(tmp_path / "d.hdf5", "hdf5", ROBOSUITE), "fail") == set()


def test_an_episode_without_cameras_is_read(tmp_path: Path) -> None:
    episode = read(robomimic(tmp_path / "d.hdf5"), "hdf5", ROBOSUITE, index=1)

    assert episode.cameras == ()
    assert {s.topic: s.values.shape for s in episode.states} == {"/action": (60, 3), "/states": (60, 5)}
    assert list(episode.pictures()) == []
