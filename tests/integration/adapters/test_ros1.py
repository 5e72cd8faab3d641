"""ROS 1 bags: written by `rosbags`, read with the header's clock, and told when they are cut off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kinemill.pipelines.adapters import load_vendor
from support.ingest import codes, inspect, judged, read

AUTO = load_vendor("auto")


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """Two seconds of joints and a camera; the recorder was 3 ms late."""
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_typestore

    from kinemill.pipelines.drops.ros2 import jpeg

    store = get_typestore(Stores.ROS1_NOETIC)
    joint, image, header, time = (
        store.types[t]
        for t in (
            "sensor_msgs/msg/JointState",
            "sensor_msgs/msg/CompressedImage",
            "std_msgs/msg/Header",
            "builtin_interfaces/msg/Time",
        )
    )
    picture = np.frombuffer(jpeg(np.random.default_rng(0).integers(0, 255, (48, 64, 3), np.uint8)), np.uint8)
    none = np.zeros(0)
    with Writer(tmp_path / "r.bag") as writer:
        joints = writer.add_connection("/joints", joint.__msgtype__, typestore=store)
        camera = writer.add_connection("/cam/image_raw/compressed", image.__msgtype__, typestore=store)
        for i in range(40):
            t_ns = 5_000_000_000 + i * 50_000_000
            stamp = header(seq=i, stamp=time(sec=t_ns // 10**9, nanosec=t_ns % 10**9), frame_id="")
            message = joint(header=stamp, name=["a"], position=np.array([i * 0.1]), velocity=none, effort=none)
            writer.write(joints, t_ns + 3_000_000, store.serialize_ros1(message, joint.__msgtype__))
            shot = image(header=stamp, format="jpeg", data=picture)
            writer.write(camera, t_ns + 3_000_000, store.serialize_ros1(shot, image.__msgtype__))
    return tmp_path / "r.bag"


def test_rows_and_pictures_come_out_on_the_headers_clock(bag: Path) -> None:
    vendor = replace(AUTO, time_base="header")

    episode = read(bag, "ros1", vendor)

    assert episode.states[0].names == ("a",)
    assert episode.states[0].t_ns[:2].tolist() == [5_000_000_000, 5_050_000_000]
    assert episode.states[0].values[:2, 0].tolist() == [0.0, 0.1]
    pictures = list(episode.pictures())
    assert len(pictures) == 40
    assert pictures[0].topic == "/cam/cam"
    assert pictures[0].image is not None
    assert pictures[0].image.shape == (48, 64, 3)
    assert inspect(bag, "ros1", AUTO).episodes[0].t_first_ns == 5_003_000_000


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.7, 0.999])
def test_cut_off_anywhere_it_is_told(bag: Path, share: float) -> None:
    data = bag.read_bytes()
    bag.write_bytes(data[: int(len(data) * share)])

    assert codes(judged(bag, "ros1", AUTO), "fail") & {"truncated", "corrupt", "empty_file"}
