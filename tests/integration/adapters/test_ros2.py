"""ROS 2 bags: quirks are set right, faults are told, nobody is lost."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from kinemill.errors import DataError
from kinemill.pipelines.adapters import find_sources, load_vendor
from kinemill.pipelines.adapters.rosbag2 import rows
from kinemill.pipelines.adapters.vendor import CameraMap, JointMap, StateMap
from support.ingest import bag_vendor, codes, inspect, judged, make_drops, read, shared_drops, stamps_of

VENDOR = load_vendor("gantry_ros2")


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    """A good bag of one's own."""
    shutil.copytree(shared_drops()["gantry_ros2"].path / "run_000", tmp_path / "run_000")
    return tmp_path / "run_000"


def test_a_good_bag_comes_out_in_our_names_units_and_clock(bag: Path) -> None:
    episode = read(bag, "ros2", VENDOR)

    states = {s.topic: s for s in episode.states}
    assert set(states) == {"/joint_states", "/action"}
    assert states["/joint_states"].names == ("shoulder", "elbow", "wrist", "gripper")
    assert states["/joint_states"].units == "rad,rad,rad,m"
    assert len(states["/joint_states"].t_ns) == 300
    assert (np.diff(states["/joint_states"].t_ns) >= 0).all()
    assert states["/joint_states"].t_ns[0] == 47_580_000_000, "the header's stamp, not the recorder's"
    stamps = stamps_of(episode)
    assert {k: len(v) for k, v in stamps.items()} == {"/cam/scene": 60, "/cam/wrist": 30}
    assert all(v == sorted(v) for v in stamps.values())
    assert episode.counts == {"unmapped_topics": 1}


def test_facts_count_repeats_and_name_what_nobody_asked_for(bag: Path) -> None:
    facts = inspect(bag, "ros2", VENDOR)

    assert facts.episodes[0].topic("/joint_states").repeated_stamps == 3
    assert codes(facts.findings) == {"unmapped_topics", "no_checksums"}
    assert [f.evidence for f in facts.findings if f.code == "unmapped_topics"] == [{"topics": "/drive_health"}]


def test_the_log_clock_is_a_little_later(bag: Path) -> None:
    log = inspect(bag, "ros2", bag_vendor(time_base="log")).episodes[0].topic("/arm/command")
    header = inspect(bag, "ros2", VENDOR).episodes[0].topic("/arm/command")

    assert header.t_first_ns == 47_580_000_000
    assert log.t_first_ns is not None
    assert 0 < log.t_first_ns - header.t_first_ns <= 6_000_000


def test_swapped_colours_are_set_right(bag: Path) -> None:
    as_is = next(iter(read(bag, "ros2", VENDOR).pictures()))
    swapped = next(iter(read(bag, "ros2", bag_vendor(color_order="bgr")).pictures()))

    assert as_is.image is not None
    assert swapped.image is not None
    assert (as_is.image == swapped.image[..., ::-1]).all()


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.3, 0.9, 0.999])
def test_cut_off_anywhere_it_is_told_and_never_passes(bag: Path, share: float) -> None:
    storage = next(bag.glob("*.mcap"))
    data = storage.read_bytes()
    storage.write_bytes(data[: int(len(data) * share)])

    found = codes(judged(bag, "ros2", VENDOR), "fail")

    assert found & {"truncated", "corrupt", "empty_file"}, found


def with_checksums(bag: Path) -> None:
    """Write the bag's MCAP anew with the stock writer, which puts a checksum on each chunk."""
    from mcap.writer import Writer

    storage = next(bag.glob("*.mcap"))
    whole = list(rows(storage))
    with storage.open("wb") as out:
        writer = Writer(out)
        writer.start("ros2")
        ids: dict[str, int] = {}
        for row in whole:
            channel = row.channel
            if channel.topic not in ids:
                schema = writer.register_schema(channel.type, channel.definition_kind, channel.raw_definition)
                ids[channel.topic] = writer.register_channel(channel.topic, channel.encoding, schema)
            writer.add_message(ids[channel.topic], row.log_ns, row.data, row.publish_ns)
        writer.finish()


def test_a_flipped_bit_in_a_chunk_is_noticed_where_there_are_checksums(bag: Path) -> None:
    assert "no_checksums" in codes(judged(bag, "ros2", VENDOR), "info")
    with_checksums(bag)
    assert codes(judged(bag, "ros2", VENDOR)) == {"unmapped_topics"}
    storage = next(bag.glob("*.mcap"))
    data = bytearray(storage.read_bytes())
    data[len(data) // 2] ^= 0x40
    storage.write_bytes(data)

    assert codes(judged(bag, "ros2", VENDOR), "fail") & {"corrupt", "truncated"}


def test_a_missing_camera_is_told_by_its_name(bag: Path) -> None:
    vendor = bag_vendor(cameras={**(VENDOR.cameras or {}), "/camera/rear": CameraMap("/cam/rear")})

    found = [f for f in judged(bag, "ros2", vendor) if f.code == "topic_missing"]

    assert [f.evidence["topic"] for f in found] == ["/camera/rear"]


def test_metadata_that_point_outside_are_not_followed(bag: Path) -> None:
    metadata = bag / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("- run_000.mcap", "- ../../../../etc/passwd"))

    found = judged(bag, "ros2", VENDOR)

    assert "path_outside" in codes(found, "warn")


@pytest.mark.parametrize(
    "text", ["", "a: &x [*x]", "rosbag2_bagfile_information: 3", "x" * 300_000, "\0", "- !!python/name:os.system"]
)
def test_broken_metadata_do_not_hide_the_rows(bag: Path, text: str) -> None:
    (bag / "metadata.yaml").write_text(text)

    facts = inspect(bag, "ros2", VENDOR)

    assert "bad_metadata" in codes(facts.findings, "warn")
    assert facts.episodes[0].topic("/arm/command").messages == 60


def test_fewer_rows_than_metadata_promise_is_a_fault(bag: Path) -> None:
    metadata = bag / "metadata.yaml"
    metadata.write_text(metadata.read_text().replace("message_count: 60", "message_count: 61", 1))

    assert "messages_missing" in codes(judged(bag, "ros2", VENDOR), "fail")


def sqlite_bag(folder: Path, *, rows_in: int = 40, qos: str = "") -> Path:
    """A sqlite3 bag of joint states, written by `rosbags`."""
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_HUMBLE)
    joint, header, time = (
        store.types[t] for t in ("sensor_msgs/msg/JointState", "std_msgs/msg/Header", "builtin_interfaces/msg/Time")
    )
    with Writer(folder, version=9, storage_plugin=StoragePlugin.SQLITE3) as writer:
        connection = writer.add_connection("/joint_states", joint.__msgtype__, typestore=store)
        none = np.zeros(0)
        for i in range(rows_in):
            message = joint(
                header=header(stamp=time(sec=i // 20, nanosec=i % 20 * 50_000_000), frame_id=""),
                name=["a", "b"],
                position=np.array([i * 0.01, -i * 0.01]),
                velocity=none,
                effort=none,
            )
            writer.write(connection, i * 50_000_000 + 7, store.serialize_cdr(message, joint.__msgtype__))
    return folder


def test_sqlite_rows_are_read_though_qos_in_table_and_metadata_differ(tmp_path: Path) -> None:
    # rosbags' own reader joins topics by QoS too, and then silently yields nothing.
    bag = sqlite_bag(tmp_path / "bag")
    database = next(bag.glob("*.db3"))
    with sqlite3.connect(database) as base:
        base.execute("UPDATE topics SET offered_qos_profiles = '- history: 3'")
    base.close()

    facts = inspect(bag, "ros2")

    assert facts.messages == 40
    episode = read(bag, "ros2")
    assert episode.states[0].names == ("a", "b")
    assert episode.states[0].values[10].tolist() == pytest.approx([0.1, -0.1])


def test_rows_that_stand_only_in_the_journal_are_read_and_the_drop_is_not_touched(tmp_path: Path) -> None:
    bag = sqlite_bag(tmp_path / "bag")
    database = next(bag.glob("*.db3"))
    writer = sqlite3.connect(database, isolation_level=None)
    writer.execute("PRAGMA journal_mode=WAL")
    writer.execute("PRAGMA wal_autocheckpoint=0")
    writer.execute(
        "INSERT INTO messages (topic_id, timestamp, data) SELECT topic_id, timestamp + 1, data FROM messages"
    )
    copy = tmp_path / "drop"
    copy.mkdir()
    for path in bag.iterdir():
        if not path.name.endswith("-shm"):
            shutil.copyfile(path, copy / path.name)
    writer.close()
    before = {p.name: p.read_bytes() for p in copy.iterdir()}

    assert sum(1 for _ in rows(copy / database.name)) == 80
    assert {p.name: p.read_bytes() for p in copy.iterdir()} == before


def test_a_damaged_database_is_told(tmp_path: Path) -> None:
    database = next(sqlite_bag(tmp_path / "bag").glob("*.db3"))
    data = bytearray(database.read_bytes())
    data[2 * 4096 :] = b"\xff" * (len(data) - 2 * 4096)
    database.write_bytes(data)

    assert codes(inspect(database.parent, "ros2").findings, "fail") & {"corrupt", "messages_missing"}


def test_a_link_that_leads_out_of_the_drop_is_left_out(tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "a.mcap").symlink_to("/etc/passwd")

    sources, findings, unclaimed = find_sources(drop)

    assert sources == []
    assert codes(findings) == {"link_out_of_drop"}
    assert unclaimed == []


def test_messages_that_lack_a_column_are_counted_and_left_out(bag: Path) -> None:
    states = dict(VENDOR.states or {})
    topic = states["/joint_states"]
    wrong = JointMap("extra", "no_such_joint")
    states["/joint_states"] = StateMap(topic.topic, (*topic.columns, wrong))

    with pytest.raises(DataError, match="no message with all its columns"):
        read(bag, "ros2", bag_vendor(states=states))


def test_the_same_seed_gives_the_same_drop(tmp_path: Path) -> None:
    first, second = (make_drops(tmp_path / n, only=("gantry_ros2",), episodes=1)["gantry_ros2"].path for n in "ab")

    assert (first / "run_000" / "run_000.mcap").read_bytes() == (second / "run_000" / "run_000.mcap").read_bytes()
