"""Recordings of other people: their facts come out, or they are refused with the right reason.

The numbers are those of the samples' own list (SOURCES.md), measured there with stock readers.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from kinemill.pipelines.adapters import VendorSpec, adapter, find_sources, load_vendor
from kinemill.pipelines.gates import judge_facts
from support.ingest import codes, ingest, inspect, only_source, read, sample, stamps_of, vendor_samples

AUTO = load_vendor("auto")
ROBOSUITE = load_vendor("robosuite")


@dataclass(frozen=True)
class Bag:
    """What SOURCES.md says of one bag."""

    path: str
    messages: int
    first_ns: int | None
    last_ns: int | None
    topics: dict[str, int] = field(default_factory=dict)
    fail: frozenset[str] = frozenset()
    """Codes that put it aside."""
    told: frozenset[str] = frozenset()
    """Codes that are told besides."""


BAGS = [
    Bag(
        "mcap/rosbag2-split-no-metadata",
        3177,
        1616653333034080451,
        1616653339386193357,
        {"/chatter": 3177},
        told=frozenset({"no_metadata"}),
    ),
    Bag(
        "mcap/rosbag2-wrong-encoding",
        7,
        1586406456763032325,
        1586406456914169506,
        {"/array_topic": 4, "/test_topic": 3},
        fail=frozenset({"unknown_encoding"}),
    ),
    Bag(
        "mcap/rosbag2-service-events",
        10,
        1699345836270074454,
        1699345836340728398,
        {"/test_topic1": 1, "/test_topic2": 1, "/events/write_split": 0},
        told=frozenset({"empty_topic"}),
    ),
    Bag(
        "mcap/one-shot-joints",
        2,
        1754489469740737342,
        1754489471043571685,
        {"/one_shot/imu": 1, "/one_shot/joint_state": 1},
    ),
    Bag(
        "mcap/camera-split-13-one-left",
        2,
        8297777777,
        8331088888,
        {"/camera/image_raw": 2},
        fail=frozenset({"files_missing", "messages_missing"}),
        told=frozenset({"message_compression"}),
    ),
    Bag(
        "mcap/viewer-corner-cases/test_bad_schema.mcap",
        20,
        0,
        900_000_000,
        {"/good/data": 10, "/bad/data": 10},
        told=frozenset({"bad_schema"}),
    ),
    Bag(
        "mcap/viewer-corner-cases/test_publish_vs_log_time.mcap", 50, 500_000_000, 5_400_000_000, {"/sensor/value": 50}
    ),
    Bag(
        "mcap/viewer-corner-cases/test_empty_channel.mcap",
        100,
        0,
        4_900_000_000,
        {"/inactive/placeholder": 0},
        told=frozenset({"empty_topic"}),
    ),
    Bag(
        "rosbag2-db3/ego-trajectory",
        2130,
        1746721937599626818,
        1746721990824595166,
        {"/localization/kinematic_state": 2130},
        told=frozenset({"no_metadata"}),
    ),
    Bag(
        "rosbag2-db3/image-imu-2019",
        5,
        1552860401167984836,
        1553411909073353785,
        {"/text": 1, "/image": 1, "/image/compressed": 1, "/fix": 1, "/imu": 1},
    ),
    Bag(
        "rosbag2-db3/split-lying-metadata",
        6074,
        1000,
        2998,
        {"AAA": 804, "HHH": 726},
        told=frozenset({"metadata_time_wrong"}),
    ),
    Bag("rosbag2-db3/empty-bag", 0, None, None, fail=frozenset({"empty"})),
    Bag("broken/demo-lfs-pointer.mcap", 0, None, None, fail=frozenset({"lfs_pointer"})),
    Bag(
        "rosbag1/jackal-imu-odom.bag",
        6121,
        47_580_000_000,
        108_781_000_000,
        {"/imu/data": 3061, "/jackal_velocity_controller/odom": 3060},
    ),
    Bag(
        "rosbag1/example-lz4.bag",
        8647,
        1396293887844783943,
        1396293909544870199,
        {"/turtle1/pose": 1344, "/turtle2/pose": 1344, "/tf": 2688, "/turtle1/cmd_vel": 357, "/tf_static": 1},
    ),
    Bag("rosbag1/example-unsorted-chunks.bag", 3, 1_000_000_000, 3_000_000_000, {"foo": 3}),
    Bag("rosbag1/no-messages.bag", 0, None, None, fail=frozenset({"empty"})),
    Bag(
        "rosbag1/fake_sensors_sample.bag",
        20,
        1626720936251753081,
        1626720955042801014,
        {"/my_magnetic_field": 10, "/my_temperature": 10},
    ),
    Bag("broken/empty-file.bag", 0, None, None, fail=frozenset({"empty_file"})),
    Bag("broken/demo-lfs-pointer.bag", 0, None, None, fail=frozenset({"lfs_pointer"})),
]


@pytest.mark.parametrize("bag", BAGS, ids=lambda b: b.path)
def test_a_bag_has_the_facts_of_the_list(bag: Bag) -> None:
    facts = inspect(sample(bag.path), "ros1" if bag.path.endswith(".bag") else "ros2")

    assert facts.messages == bag.messages
    if facts.episodes:
        (episode,) = facts.episodes
        assert (episode.t_first_ns, episode.t_last_ns) == (bag.first_ns, bag.last_ns)
        for topic, messages in bag.topics.items():
            assert episode.topic(topic).messages == messages
    assert codes(facts.findings, "fail") == bag.fail
    assert codes(facts.findings) >= bag.told


def test_the_missing_files_and_frames_are_counted() -> None:
    facts = inspect(sample("mcap/camera-split-13-one-left"), "ros2")

    found = {f.code: f.evidence for f in facts.findings}
    assert found["files_missing"] == {"missing": "12", "files": "13"}
    assert (found["messages_missing"]["missing"], found["messages_missing"]["promised"]) == ("249", "251")


def test_message_level_compression_is_unpacked() -> None:
    pictures = list(read(sample("mcap/camera-split-13-one-left"), "ros2").pictures())

    assert [p.image.shape for p in pictures if p.image is not None] == [(480, 640, 3)] * 2
    assert [p.t_ns for p in pictures] == [8297777777, 8331088888]


def test_header_stamps_equal_log_times_there() -> None:
    from dataclasses import replace

    facts = inspect(sample("mcap/camera-split-13-one-left"), "ros2", replace(AUTO, time_base="header"))

    assert facts.episodes[0].t_first_ns == 8297777777


def test_publish_time_is_half_a_second_before_log_time() -> None:
    from dataclasses import replace

    path = sample("mcap/viewer-corner-cases/test_publish_vs_log_time.mcap")
    facts = inspect(path, "ros2", replace(AUTO, time_base="publish"))

    assert (facts.episodes[0].t_first_ns, facts.episodes[0].t_last_ns) == (0, 4_900_000_000)


def test_a_bad_topic_does_not_sink_the_good_one() -> None:
    episode = read(sample("mcap/viewer-corner-cases/test_bad_schema.mcap"), "ros2")

    assert [(s.topic, len(s.t_ns)) for s in episode.states] == [("/good/data", 10)]


def test_one_sample_of_joints() -> None:
    episode = read(sample("mcap/one-shot-joints"), "ros2")

    joints = next(s for s in episode.states if s.topic == "/one_shot/joint_state")
    assert joints.names[:3] == ("joint1", "joint2", "joint3")
    assert joints.values[0, :3].tolist() == [1.5, -0.5, 0.8]
    assert joints.rate_hz is None


def test_the_gap_in_the_drive_is_the_lists() -> None:
    facts = inspect(sample("rosbag2-db3/ego-trajectory"), "ros2")

    assert facts.episodes[0].duration_s == pytest.approx(53.225, abs=5e-4)
    assert facts.episodes[0].topics[0].max_gap_ns == pytest.approx(29.9e6, abs=5e4)


def test_six_days_in_one_file_are_not_one_episode() -> None:
    facts = inspect(sample("rosbag2-db3/image-imu-2019"), "ros2")

    assert facts.episodes[0].duration_s == pytest.approx(551507.905, abs=1e-3)
    _, each = judge_facts(facts, AUTO, "sample")
    assert "too_long" in codes(each[0], "fail")


def test_raw_and_compressed_picture_of_the_same_camera_agree() -> None:
    pictures = [p.image for p in read(sample("rosbag2-db3/image-imu-2019"), "ros2").pictures()]

    assert [p.shape for p in pictures if p is not None] == [(480, 640, 3)] * 2


@pytest.mark.parametrize(
    ("path", "rows", "first_ns", "last_ns", "repeated"),
    [
        ("hdf5/robosuite-1.0.1/lift/panda/demo.hdf5", [412], [52_000_000], [20_602_000_000], [0]),
        ("hdf5/robosuite-1.0.1/wipe/panda/demo.hdf5", [174], [52_000_000], [8_702_000_000], [0]),
        (
            "hdf5/robosuite-0.3.0/SawyerLift/demo.hdf5",
            [1058, 837],
            [10_000_000] * 2,
            [11_680_000_000, 9_450_000_000],
            [0, 0],
        ),
        (
            "hdf5/robosuite-0.3.0/BaxterPegInHole/demo.hdf5",
            [1382, 1138],
            [10_000_000] * 2,
            [14_070_000_000, 11_880_000_000],
            [75, 50],
        ),
    ],
)
def test_demonstrations_have_the_facts_of_the_list(
    path: str, rows: list[int], first_ns: list[int], last_ns: list[int], repeated: list[int]
) -> None:
    facts = inspect(sample(path), "hdf5", ROBOSUITE)

    states = [e.topic("states") for e in facts.episodes]
    assert [s.messages for s in states] == rows
    assert [s.t_first_ns for s in states] == first_ns
    assert [s.t_last_ns for s in states] == last_ns
    assert [s.repeated_stamps for s in states] == repeated


def test_zero_width_arrays_and_missing_actions_are_told() -> None:
    sawyer = inspect(sample("hdf5/robosuite-0.3.0/SawyerLift/demo.hdf5"), "hdf5", ROBOSUITE)
    baxter = inspect(sample("hdf5/robosuite-0.3.0/BaxterPegInHole/demo.hdf5"), "hdf5", ROBOSUITE)

    assert [sum(f.code == "zero_width" for f in e.findings) for e in sawyer.episodes] == [2, 2]
    assert all(codes(e.findings, "warn") == {"no_action"} for e in baxter.episodes)


def test_pick_n_place_has_the_facts_of_the_list() -> None:
    facts = inspect(sample("lerobot/gr1-pick-n-place-v2.0"), "lerobot")

    camera = "observation.images.ego_view"
    assert [e.topic("action").messages for e in facts.episodes] == [416, 470, 470, 412, 328]
    assert [e.topic(camera).messages for e in facts.episodes] == [416, 470, 470, 412, 328]
    rows = [e.topic("action") for e in facts.episodes]
    assert [r.t_first_ns for r in rows] == [50_000_000] * 5
    lasts = [20.800, 23.500, 23.500, 20.600, 16.400]
    assert [r.t_last_ns for r in rows if r.t_last_ns] == pytest.approx([s * 1e9 for s in lasts], abs=5e4)
    assert [e.topic(camera).t_first_ns for e in facts.episodes] == [0] * 5
    assert facts.episodes[0].topic(camera).type == "h264 yuv420p 256x256"
    assert codes(facts.findings, "warn") == {"camera_not_there", "video_count_wrong", "split_wrong"}
    counted = next(f.evidence for f in facts.findings if f.code == "video_count_wrong")
    assert counted == {"meta": "2", "files": "5"}
    assert all(codes(e.findings) == {"video_offset"} for e in facts.episodes)


def test_the_partial_set_tells_what_is_not_there() -> None:
    facts = inspect(sample("lerobot/g1-bottle-v2.1-partial"), "lerobot")

    assert [e.index for e in facts.episodes] == [28, 29, 30]
    assert [e.topic("action").messages for e in facts.episodes] == [278, 221, 277]
    assert [e.duration_s for e in facts.episodes] == pytest.approx([9.233, 7.333, 9.200], abs=5e-4)
    camera = facts.episodes[1].topic("observation.images.cam_high")
    assert (camera.messages, camera.type) == (221, "av1 yuv420p 640x480")
    evidence = {f.code: f.evidence for f in facts.findings}
    assert evidence["episodes_without_data"] == {"episodes": "97"}
    assert evidence["episodes_without_video"] == {"episodes": "2"}
    assert [codes(e.findings, "fail") for e in facts.episodes] == [{"video_missing"}, set(), {"video_missing"}]


@pytest.mark.parametrize("path", ["lerobot/tiny-v3.0", "lerobot/tiny-v2.1-images-in-parquet"])
def test_tiny_sets(path: str) -> None:
    facts = inspect(sample(path), "lerobot")

    assert [e.topic("action").messages for e in facts.episodes] == [3, 3]
    for index in (0, 1):
        assert stamps_of(read(sample(path), "lerobot", index=index)) == {"/cam/cam": [0, 100_000_000, 200_000_000]}


def relaxed(vendor: VendorSpec) -> VendorSpec:
    """Limits that short samples meet; what is broken stays broken."""
    from dataclasses import replace

    return replace(vendor, gates=replace(vendor.gates, min_duration_s=0.1, max_joint_rad=1e3))


def test_every_claimed_sample_is_published_or_put_aside_with_its_reason(tmp_path: Path) -> None:
    from kinemill.pipelines.ingest import MemoryLedger
    from kinemill.store import MemoryStore

    root = vendor_samples()
    store, ledger = MemoryStore(), MemoryLedger()
    claimed = 0
    for folder, vendor in (
        ("mcap", AUTO),
        ("rosbag2-db3", AUTO),
        ("lerobot", AUTO),
        ("hdf5", ROBOSUITE),
        ("broken", AUTO),
        ("rosbag1", AUTO),
    ):
        report = ingest(
            root / folder, relaxed(vendor), tmp_path / "work", store=store, ledger=ledger, delivery=f"samples {folder}"
        )
        claimed += report.recordings
        assert report.failed == ()
    published = {key.split("/", 1)[1]: e for (_, key), e in ledger.episodes.items()}
    aside = {r.source.split("/", 1)[1]: r.code for r in ledger.records}

    assert aside == {
        "demo-lfs-pointer.mcap": "lfs_pointer",
        "demo-lfs-pointer.bag": "lfs_pointer",
        "empty-file.bag": "empty_file",
        "no-messages.bag": "empty",
        "example-unsorted-chunks.bag": "unsupported",
        "fake_sensors_sample.bag": "gap",
        "camera-split-13-one-left": "files_missing",
        "rosbag2-split-no-metadata": "unsupported",
        "rosbag2-service-events": "too_short",
        "rosbag2-wrong-encoding": "unknown_encoding",
        "image-imu-2019/sample.db3": "too_long",
        "empty-bag": "empty",
        # Their CDR headers say big endian, their numbers are little endian: what comes out is 1e209.
        "viewer-corner-cases/test_bad_schema.mcap": "value_out_of_range",
        "viewer-corner-cases/test_publish_vs_log_time.mcap": "value_out_of_range",
        "viewer-corner-cases/test_empty_channel.mcap": "value_out_of_range",
        "split-lying-metadata": "too_short",
        "g1-bottle-v2.1-partial#28": "video_missing",
        "g1-bottle-v2.1-partial#30": "video_missing",
    }
    pick = [published[f"gr1-pick-n-place-v2.0#{i}"] for i in range(5)]
    assert [(e.frames, e.fps) for e in pick] == [(n, 20.0) for n in (416, 470, 470, 412, 328)]
    assert published["g1-bottle-v2.1-partial#29"].frames == 221
    blind = published["robosuite-1.0.1/lift/panda/demo.hdf5demo_1"]
    assert (blind.frames, blind.fps) == (0, 0.0)
    assert [g.name for g in blind.rendition.receipt.groups] == ["state"], "no cameras, no cameras group"
    assert len(published) == 5 + 1 + 2 + 2 + 6 + 1 + 1 + 2, "LeRobot, robosuite, the joints, the drive, two of ROS 1"
    for entry in published.values():
        assert store.head(entry.rendition.key).size_bytes == entry.rendition.receipt.size_bytes
    assert claimed == 8 + 4 + 4 + 4 + 3 + 5


def test_nothing_is_claimed_by_two_adapters() -> None:
    sources, _, _ = find_sources(vendor_samples())

    owned = [path for s in sources for path in s.files]
    assert len(owned) == len(set(owned))
    assert {s.adapter for s in sources} == {"ros1", "ros2", "hdf5", "lerobot"}
    assert only_source(sample("rosbag2-db3/ego-trajectory"), "ros2").adapter == adapter("ros2").name


def test_pictures_of_the_real_hand_decode_to_the_last(tmp_path: Path) -> None:
    pictures = list(read(sample("lerobot/g1-bottle-v2.1-partial"), "lerobot", index=29).pictures())

    assert len(pictures) == 221
    last = pictures[-1].image
    assert last is not None
    assert last.shape == (480, 640, 3)
    assert float(np.std(last)) > 20
