"""`kinemill load` on real episodes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from kinemill.cli import cli, run
from kinemill.errors import CorruptError, StateError
from kinemill.loaders import Manifest
from kinemill.loaders.commands import load
from kinemill.loaders.commands.group import parse_window
from kinemill.loaders.export_lerobot import export
from kinemill.loaders.faults import Faults
from kinemill.loaders.quarantine import spool_path
from kinemill.store.files import FileStore
from support.layers import skip
from support.loaders import frame_of, make_episode, manifest_of, publish, step_of


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("commands")
    store = FileStore(folder / "bucket")
    made = [make_episode(store, seed=i, frames=n) for i, n in enumerate((45, 30))]
    path = manifest_of(folder / "m.arrow", [m.row for m in made])
    publish(store, path, id="demo")
    return store, path, made


def told(*args: str, code: int = 0):
    result = CliRunner().invoke(load, [*args, "--json"])
    assert result.exit_code == code, result.output + str(result.exception)
    return json.loads(result.stdout)


def test_every_command_has_help_with_an_example() -> None:
    for name in load.commands:
        text = CliRunner().invoke(load, [name, "--help"]).output
        assert f"Example: kinemill load {name}" in text, name
        assert "--json" in text
    assert "load" in CliRunner().invoke(cli, ["--help"]).output


def test_pull_fetches_once_and_collects(corpus, tmp_path: Path) -> None:
    store, _, _ = corpus
    got = told("pull", "demo", "--store", store.url, "--dir", str(tmp_path / "local"))
    assert Path(got["path"]).exists()
    assert got["rows"] == 2
    assert told("pull", "demo", "--store", store.url, "--dir", str(tmp_path / "local"), "--verify") == got
    gone = told("pull", "--gc", "--keep", "0", "--dir", str(tmp_path / "local"), "--dry-run")
    assert gone["removed"] == [got["path"]]
    assert Path(got["path"]).exists()
    told("pull", "--gc", "--keep", "0", "--dir", str(tmp_path / "local"))
    assert not Path(got["path"]).exists()


def test_a_missing_manifest_and_a_missing_store_say_so(corpus, capsys: pytest.CaptureFixture[str]) -> None:
    store, _, _ = corpus
    assert run(load, "kinemill load", ["pull", "nope", "--store", store.url]) == 1
    assert "no manifest 'nope'" in capsys.readouterr().err
    assert run(load, "kinemill load", ["probe", "nope"]) == 2
    assert "say --store" in capsys.readouterr().err


def test_probe_reads_everywhere_and_finds_the_broken_one(corpus, tmp_path: Path) -> None:
    store, path, made = corpus
    got = told("probe", str(path), "--store", store.url, "--samples", "10")
    assert got["read"] == 10
    assert got["masked"] == {}
    assert 0 < got["requests_per_sample"] <= 2.5  # fewer where a state chunk was fetched for a sample before
    broken = make_episode(store, seed=77, frames=30, damage=lambda raw: raw[:4000])
    bad = manifest_of(tmp_path / "bad.arrow", [made[0].row, broken.row])
    got = told("probe", str(bad), "--store", store.url, "--samples", "10", code=1)
    assert got["masked"]["truncated"] > 0
    assert got["first_masked_episode"]["truncated"] == str(broken.id)


def test_probe_overfits_one_episode(corpus) -> None:
    store, path, _ = corpus
    windows = ["--window", "/state=0", "--window", "/action=0:4"]
    got = told("probe", str(path), "--store", store.url, "--samples", "2", "--overfit", *windows)
    assert got["overfit"]["fits"]
    assert got["overfit"]["last_loss"] < got["overfit"]["first_loss"] / 20


def test_bench_says_where_the_time_goes(corpus) -> None:
    store, path, _ = corpus
    got = told("bench", str(path), "--store", store.url, "--samples", "32", "--batch-size", "8")
    assert got["samples_per_s"] > 0
    assert set(got["ms_per_sample"]) == {"fetch_ms", "verify_ms", "decode_ms", "collate_ms"}
    assert all(value >= 0 for value in got["ms_per_sample"].values())
    assert got["requests_per_sample"] <= 2.5
    assert got["limited_by"].split(":")[0] in ("fetch", "decode")


def test_show_draws_a_batch(corpus, tmp_path: Path) -> None:
    import av

    store, path, _ = corpus
    got = told("show", str(path), "--store", store.url, "--out", str(tmp_path / "b.png"), "--count", "3")
    assert got["fields"]["/cam/0"] == "(3, 1, 48, 64, 3) torch.uint8"
    with av.open(got["picture"]) as picture:
        frame = next(picture.decode(video=0))
    assert frame.width == 2 * 162
    assert frame.height == 3 * 122


def test_show_lists_quarantine_records(tmp_path: Path) -> None:
    assert told("show", "--quarantine", str(tmp_path)) == {"records": []}
    Faults(spool=spool_path(tmp_path, 2)).mask(CorruptError("crc differs"), source="episodes/x", episode_id="e")
    got = told("show", "--quarantine", str(tmp_path), code=1)
    assert got["records"][0]["code"] == "corrupt"
    text = CliRunner().invoke(load, ["show", "--quarantine", str(tmp_path)])
    assert "crc differs" in text.output


@pytest.mark.parametrize("bad", ["x", "=1", "/a=", "/a=1.5", "/a=x:y", "/a=1:2:3:4"])
def test_a_window_that_is_none_is_refused(bad: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(load, "kinemill load", ["probe", __file__, "--window", bad]) != 0
    with pytest.raises(Exception, match="expected TOPIC=0"):
        parse_window(bad)


def test_windows_on_the_command_line() -> None:
    assert parse_window("/a=0:5")[1].steps == (0, 1, 2, 3, 4)
    assert parse_window("/a=-1,0")[1].steps == (-1, 0)
    assert parse_window("/a=-0.5s,0s")[1].offsets_ns == (-500_000_000, 0)


# ---- LeRobot


def test_the_export_is_a_lerobot_v3_set_with_the_same_pictures(corpus, tmp_path: Path) -> None:
    import av

    store, path, _ = corpus
    target = tmp_path / "set"
    got = told("export-lerobot", str(path), str(target), "--store", store.url)
    assert got["episodes"] == 2
    assert got["frames"] == 75
    info = json.loads((target / "meta/info.json").read_text())
    assert info["codebase_version"] == "v3.0"
    assert info["fps"] == 30
    assert info["total_frames"] == 75
    data = pq.read_table(target / "data/chunk-000/file-000.parquet").to_pydict()
    assert data["index"] == list(range(75))
    assert data["frame_index"] == [*range(45), *range(30)]
    assert data["timestamp"][44] == pytest.approx(44 / 30)
    # the row at or before frame 10 is number 33
    assert data["observation.state"][10][2] == 33.0
    assert data["action"][10][2] == -33.0
    meta = pq.read_table(target / "meta/episodes/chunk-000/file-000.parquet").to_pylist()
    assert [m["length"] for m in meta] == [45, 30]
    assert meta[1]["dataset_from_index"] == 45
    assert json.loads((target / "meta/stats.json").read_text())["action"]["count"] == [75]
    for episode, count in ((0, 45), (1, 30)):
        video = target / f"videos/observation.images.cam_1/chunk-000/file-{episode:03d}.mp4"
        with av.open(str(video)) as file:
            frames = [f.to_ndarray(format="rgb24") for f in file.decode(video=0)]
            assert file.streams.video[0].average_rate == 30
        assert [step_of(f) for f in frames] == list(range(count))
        assert abs(frames[5].astype(int) - frame_of(1, 5)).mean() < 12
    with pytest.raises(StateError, match="exists"):
        export(Manifest.from_file(path), store.url, target)


def test_a_jittering_episode_is_refused_and_leaves_no_set(corpus, tmp_path: Path) -> None:
    store, _, _ = corpus
    odd = make_episode(store, seed=31, frames=40, fps=30.0, jitter_ns=30_000_000)
    path = manifest_of(tmp_path / "j.arrow", [odd.row])
    result = CliRunner().invoke(load, ["export-lerobot", str(path), str(tmp_path / "set"), "--store", store.url])
    assert result.exit_code == 1
    assert "not a steady 30 fps" in str(result.exception)
    assert not (tmp_path / "set").exists()


_READ = """
import sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset
deltas = {"action": [0.0, 1 / 30]}
data = LeRobotDataset("kinemill/export", root=sys.argv[1], delta_timestamps=deltas, return_uint8=True)
for i in (0, 20, 44, 45, 74):
    item = data[i]
    pads = item["action_is_pad"].tolist()
    print(i, int(item["episode_index"]), int(item["observation.state"][2]), item["task"], *pads)
    np.save(f"{sys.argv[2]}/{i}.npy", item["observation.images.cam_0"].permute(1, 2, 0).numpy())
print(len(data))
"""


@pytest.mark.full("loaders")
def test_lerobot_itself_reads_the_export(corpus, tmp_path: Path) -> None:
    peers = Path(os.environ.get("KINEMILL_PEERS") or Path.home() / ".cache/kinemill/peers") / "lerobot"
    if not (peers / "done").exists():
        skip("no LeRobot environment", run="benchmarks/peers/lerobot.sh, then make full-loaders")
    store, path, _ = corpus
    told("export-lerobot", str(path), str(tmp_path / "set"), "--store", store.url)
    result = subprocess.run(
        [str(peers / "bin/python"), "-c", _READ, str(tmp_path / "set"), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    lines = result.stdout.splitlines()
    assert lines[-1:] == ["75"], result.stderr[-2000:]
    assert lines[1] == "20 0 66 pick up the cube False False"
    assert lines[3] == "45 1 0 pick up the cube False False"
    assert lines[4].endswith("False True")
    for i, step in ((0, 0), (20, 20), (44, 44), (45, 0), (74, 29)):
        assert step_of(np.load(tmp_path / f"{i}.npy")) == step
