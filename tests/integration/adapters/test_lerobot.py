"""LeRobot sets: what the files hold counts, not what meta/ says."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kinemill.pipelines.adapters import load_vendor
from support.ingest import (
    codes,
    convert,
    disc_at,
    inspect,
    messages_of,
    read,
    receipt_messages,
    shared_drops,
    stamps_of,
)

VENDOR = load_vendor("deskarm_lerobot")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    """A set of one's own: three good episodes and one of which pictures are missing."""
    shutil.copytree(shared_drops()["deskarm_lerobot"].path, tmp_path / "set")
    return tmp_path / "set"


def edit_info(dataset: Path, **changes: Any) -> None:
    path = dataset / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_degrees_and_percent_become_rad_and_m(dataset: Path) -> None:
    episode = read(dataset, "lerobot", VENDOR)

    action = next(s for s in episode.states if s.topic == "/action")
    assert action.names == ("shoulder", "elbow", "wrist", "gripper")
    assert action.units == "rad,rad,rad,m"
    assert np.abs(action.values[:, :3]).max() < 3.2
    assert set(np.round(action.values[:, 3], 6)) <= {0.0, 0.08}
    assert episode.instruction.startswith("reach the disc")


def test_pictures_belong_to_rows_by_number_and_the_offset_is_told(dataset: Path) -> None:
    facts = inspect(dataset, "lerobot", VENDOR)
    stamps = stamps_of(read(dataset, "lerobot", VENDOR, 1))

    assert "video_offset" in codes(facts.episodes[1].findings, "info")
    assert stamps["/cam/scene"] == [50_000_000 * (i + 1) for i in range(60)]


def test_each_episode_gets_its_own_part_of_the_shared_video(dataset: Path) -> None:
    for index in (0, 2):
        episode = read(dataset, "lerobot", VENDOR, index)
        gripper = next(s for s in episode.states if s.topic == "/action").values[:, 3]
        pictures = [p for p in episode.pictures() if p.topic == "/cam/scene"]
        right = [
            seen[2] == ("magenta" if opened > 0.04 else "cyan")
            for p, opened in zip(pictures, gripper, strict=True)
            if p.image is not None and (seen := disc_at(p.image)) is not None
        ]
        assert len(right) > 55
        assert all(right), "the disc's colour asks for the gripper: one picture off by a jump would show"


def test_missing_pictures_put_their_episode_aside_and_no_other(dataset: Path) -> None:
    facts = inspect(dataset, "lerobot", VENDOR)

    assert [codes(e.findings, "fail") for e in facts.episodes] == [set(), set(), set(), {"frames_missing"}]
    assert codes(facts.findings, "warn") == {"camera_not_there"}


def test_packets_that_meet_the_rules_pass_through_unchanged(dataset: Path, tmp_path: Path) -> None:
    done = convert(dataset, "lerobot", tmp_path / "e.mcap", VENDOR)

    assert done.passthrough
    assert done.receipt is not None
    assert messages_of(tmp_path / "e.mcap") == receipt_messages(done.receipt)
    assert receipt_messages(done.receipt)["/cam/wrist"] == 60


def test_other_gops_are_encoded_anew(dataset: Path, tmp_path: Path) -> None:
    import uuid

    from kinemill.pipelines.ingest.convert import convert_episode
    from support.ingest import only_source

    source = only_source(dataset, "lerobot")
    done = convert_episode(source, VENDOR, 0, episode_id=uuid.UUID(int=7), profile="world", out=tmp_path / "e.mcap")

    assert not done.passthrough
    assert min(m.psnr_db for m in done.topics if m.psnr_db is not None) > 30


def test_more_pictures_than_rows_is_a_fault(dataset: Path) -> None:
    path = dataset / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    keep = np.asarray(table["index"]) != 10
    pq.write_table(table.filter(pa.array(keep)), path)

    found = codes(inspect(dataset, "lerobot", VENDOR).episodes[0].findings, "fail")

    assert found == {"frames_extra", "rows_differ"}


def test_videos_that_are_not_where_the_template_says_are_found_by_name(dataset: Path) -> None:
    for camera in ("top", "grip"):
        (dataset / "videos" / f"observation.images.{camera}").rename(dataset / "videos" / camera)

    facts = inspect(dataset, "lerobot", VENDOR)

    assert codes(facts.episodes[0].findings, "fail") == set()


@pytest.mark.parametrize(
    "template",
    ["../../../../etc/{video_key}", "/etc/passwd", "{video_key.__class__.__mro__}", "{0}", "x" * 5000, ""],
)
def test_a_template_that_plays_tricks_names_no_file(dataset: Path, template: str) -> None:
    edit_info(dataset, data_path=template, video_path=template)

    facts = inspect(dataset, "lerobot", VENDOR)

    assert "episodes_without_data" in codes(facts.findings, "warn")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"features": {}}', '{"codebase_version": "v9.9", "features": {}}'])
def test_a_broken_info_is_told(dataset: Path, text: str) -> None:
    (dataset / "meta/info.json").write_text(text)

    assert "bad_metadata" in codes(inspect(dataset, "lerobot", VENDOR).findings, "fail")


@pytest.mark.parametrize("leaf", ["data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"])
def test_a_parquet_that_is_cut_off_is_told(dataset: Path, leaf: str) -> None:
    path = dataset / leaf
    path.write_bytes(path.read_bytes()[:-100])

    assert inspect(dataset, "lerobot", VENDOR).codes() & {"corrupt", "bad_metadata"}


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
def test_a_video_that_is_cut_off_puts_its_episodes_aside(dataset: Path, share: float) -> None:
    path = dataset / "videos/observation.images.top/chunk-000/file-000.mp4"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])

    facts = inspect(dataset, "lerobot", VENDOR)

    assert all("bad_video" in codes(e.findings, "fail") for e in facts.episodes)


def test_index_columns_of_floats_are_numbers_all_the_same(dataset: Path) -> None:
    path = dataset / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    at = table.schema.get_field_index("episode_index")
    pq.write_table(table.set_column(at, "episode_index", table["episode_index"].cast("float64")), path)

    assert inspect(dataset, "lerobot", VENDOR).episodes[2].topic("action").messages == 60


def test_nan_and_ragged_rows_are_not_made_up(dataset: Path) -> None:
    path = dataset / "data/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    rows = table["action"].to_pylist()
    rows[3] = [1.0]
    at = table.schema.get_field_index("action")
    pq.write_table(table.set_column(at, "action", pa.array(rows, pa.list_(pa.float32()))), path)

    with pytest.raises(Exception, match="differ in width"):
        read(dataset, "lerobot", VENDOR)
