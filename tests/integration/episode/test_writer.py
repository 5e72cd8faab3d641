"""What a recording may do: late, repeated and missing messages, mixed rates, every kind of topic, no camera at all."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, TopicSpec, Window, profile_of
from kinemill.episode.h264 import check_packet
from kinemill.episode.scan import FileSource
from kinemill.episode.topics import Profile
from kinemill.episode.verify import verify
from kinemill.errors import LimitError, StateError, UnsupportedError, UsageError
from support.episode import EPISODE, KEY, NS, encode, packets, picture, row, specs, stamp, stored

NAMES = tuple(f"joint{i}" for i in range(7))


class Recording:
    """A writer into memory, and a reader of what it wrote."""

    def __init__(self, topics: list[TopicSpec], profile: str | Profile = "vla", **options: bool) -> None:
        self.sink = io.BytesIO()
        self.writer = EpisodeWriter(self.sink, episode_id=EPISODE, profile=profile, topics=topics, **options)
        self.receipt: Receipt | None = None

    def close(self) -> Receipt:
        self.receipt = self.writer.close()
        return self.receipt

    def reader(self) -> EpisodeReader:
        assert self.receipt is not None
        layout = Layout.from_columns(*Layout.from_receipt(self.receipt).columns())
        return EpisodeReader.open(stored(self.sink.getvalue()), KEY, layout=layout)

    def sound(self, tmp_path: Path) -> None:
        path = tmp_path / "e.mcap"
        path.write_bytes(self.sink.getvalue())
        assert self.receipt is not None
        with FileSource(path) as source:
            report = verify(source, deep=True, sha256=self.receipt.sha256, size_bytes=self.receipt.size_bytes)
        assert report.findings == []


def state(topic: str = "/state/0", rate: float = 200) -> TopicSpec:
    return TopicSpec(topic, TopicKind.STATE, rate_hz=rate, names=NAMES)


# ---- cut rules


def test_idrs_fall_on_the_same_ticks_for_mixed_rates_and_resolutions(tmp_path: Path) -> None:
    # given cameras at 30, 15 and 10 Hz and of two sizes, with jitter
    rates = {"/a": 30.0, "/b": 15.0, "/c": 10.0}
    size = {"/a": (64, 48), "/b": (96, 64), "/c": (64, 48)}
    rec = Recording([TopicSpec(t, rate_hz=r) for t, r in rates.items()])
    rng = np.random.default_rng(0)
    events = sorted(
        (stamp(k, rate) + int(rng.integers(-3_000_000, 3_000_000)), topic, k)
        for topic, rate in rates.items()
        for k in range(int(2 * rate))
    )
    # when
    for t, topic, k in events:
        rec.writer.frame(topic, t, picture(0, k, *size[topic]))
    receipt = rec.close()
    rec.sound(tmp_path)
    # then every chunk spans one tick of 5 frames of the fastest camera, and starts with an IDR of each camera in it
    (group,) = receipt.groups
    assert len(group.chunks) == 12
    assert group.gops is None
    assert group.late_messages == 0
    for message_topic, per_chunk in zip(group.topics, group.chunks.runs, strict=True):
        assert sum(n * m for n, m in zip(per_chunk[::2], per_chunk[1::2], strict=True)) == message_topic.messages
    # and every frame is found under its own time
    reader = rec.reader()
    for t, topic, _ in events[::7]:
        t_ns, pictures, pad = reader.read([Window.at(topic, t)])[topic]
        assert t_ns.tolist() == [t]
        assert not pad.any()
        assert pictures.shape[1:3] == size[topic][::-1]


def test_unsynchronized_cameras_still_take_one_request() -> None:
    # given two cameras whose stamps lie 9 ms apart
    rec = Recording([TopicSpec("/a", rate_hz=30), TopicSpec("/b", rate_hz=30)])
    for k in range(60):
        rec.writer.frame("/a", stamp(k), picture(0, k))
        rec.writer.frame("/b", stamp(k) + 9_000_000, picture(1, k))
    receipt = rec.close()
    assert 8_000_000 < receipt.groups[0].skew_ns < 10_000_000
    # when frames are read exactly at the first camera's IDRs, where the second's last frame lies in the chunk before
    reader = rec.reader()
    for k in (5, 10, 30):
        answer = reader.read([Window.at("/a", stamp(k)), Window.at("/b", stamp(k))])
        # then each is the last at or before, and it took one ranged read
        assert answer["/a"][0].tolist() == [stamp(k)]
        assert answer["/b"][0].tolist() == [stamp(k - 1) + 9_000_000]
    assert [op for op, _ in reader.store.requests] == ["get_range"] * 3  # type: ignore[attr-defined]


def test_dropped_frames_and_variable_rate(tmp_path: Path) -> None:
    # given a camera that loses frames, for up to a second
    kept = [k for k in range(120) if k % 7 and not 40 < k < 72]
    rec = Recording([TopicSpec("/a", rate_hz=30)])
    for k in kept:
        rec.writer.frame("/a", stamp(k), picture(0, k))
    rec.writer.note("dropped_frames", 120 - len(kept))
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.counts == {"dropped_frames": 120 - len(kept)}
    # when asked inside the hole
    reader = rec.reader()
    answer = reader.read(
        [Window.at("/a", stamp(60)), Window.at("/a", [stamp(60)], tolerance_ns=100_000_000, name="strict")]
    )
    # then the true time comes back, and a tolerance makes it padding
    assert answer["/a"][0].tolist() == [stamp(40)]
    assert answer["/a"][2].tolist() == [False]
    assert answer["strict"][2].tolist() == [True]
    # and nearest looks both ways
    near = reader.read([Window.at("/a", stamp(70), pick="nearest")])["/a"]
    assert near[0].tolist() == [stamp(72)]


def test_world_chunks_hold_whole_gops_and_big_ones_are_aligned(tmp_path: Path) -> None:
    # given chunks that are made to grow over 4 MiB by a camera of noise
    profile = profile_of("world", gop_frames=4, chunk_bytes=4 << 20, crf=1.0, preset="ultrafast")
    rng = np.random.default_rng(1)
    rec = Recording([TopicSpec("/a", rate_hz=30), state()], profile)
    for k in range(24):
        rec.writer.frame("/a", stamp(k), rng.integers(0, 256, (480, 640, 3), dtype=np.uint8))
        rec.writer.rows("/state/0", stamp(k), row(0, stamp(k)))
    receipt = rec.close()
    rec.sound(tmp_path)
    cameras = receipt.groups[0]
    # then they start on 1 MiB borders, hold several GOPs, and a stock reader skips the padding
    assert len(cameras.chunks) > 1
    assert cameras.gops is not None
    assert len(cameras.gops) == 6
    for offset, length in zip(cameras.chunks.offset, cameras.chunks.length, strict=True):
        assert offset % (1 << 20) == 0 or length < 4 << 20
    assert sum(1 for _ in make_reader(io.BytesIO(rec.sink.getvalue()), validate_crcs=True).iter_messages()) == 48
    # and small chunks are not padded
    assert receipt.groups[1].chunks.offset[0] % (1 << 20)


# ---- late and odd messages


def test_messages_inside_the_reorder_window_are_sorted_and_later_ones_are_kept_and_counted(tmp_path: Path) -> None:
    rec = Recording([state(), state("/state/1")])
    times = [stamp(0) + k * 5_000_000 for k in range(1000)]
    rng = np.random.default_rng(2)
    order = sorted(range(1000), key=lambda k: times[k] + int(rng.integers(0, 400_000_000)))  # within 0.5 s
    late = [k for k in order if k % 97 == 0]
    for k in [k for k in order if k % 97] + late:  # far too late: at the very end
        rec.writer.rows("/state/0", times[k], row(0, times[k]))
    for t in times:
        rec.writer.rows("/state/1", t, row(1, t))
    receipt = rec.close()
    rec.sound(tmp_path)
    group = receipt.groups[0]
    assert group.messages == 2000
    assert group.late_messages > 0
    # then each is found under its true time, late or not
    reader = rec.reader()
    for k in (1, 97, 500, 97 * 5, 999):
        t_ns, rows, pad = reader.read([Window.at("/state/0", times[k])])["/state/0"]
        assert t_ns.tolist() == [times[k]]
        np.testing.assert_array_equal(rows[0], row(0, times[k]))
        assert not pad.any()


def test_a_late_frame_is_an_idr_of_its_own_in_a_later_chunk(tmp_path: Path) -> None:
    rec = Recording([TopicSpec("/a", rate_hz=30)])
    for k in [*range(10), *range(11, 60), 10]:
        rec.writer.frame("/a", stamp(k), picture(0, k))
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.groups[0].late_messages == 1
    assert receipt.groups[0].messages == 60
    reader = rec.reader()
    for k in (9, 10, 11, 59):
        t_ns, pictures, _ = reader.read([Window.at("/a", stamp(k))])["/a"]
        assert t_ns.tolist() == [stamp(k)]
        errors = [np.abs(pictures[0].astype(int) - picture(0, j)).mean() for j in range(60)]
        assert int(np.argmin(errors)) == k


def test_repeated_and_zero_stamps_are_kept_and_counted(tmp_path: Path) -> None:
    rec = Recording([state()])
    for _ in range(20):
        rec.writer.rows("/state/0", 0, row(0, 0))
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.counts == {"repeated_stamps": 19}
    assert rec.reader().read([Window.between("/state/0", 0, 1)])["/state/0"][1].shape == (20, 7)


def test_camera_packets_whose_clock_stands_still_do_not_fill_the_memory() -> None:
    small = profile_of("vla", max_chunk_bytes=20_000)
    rec = Recording([TopicSpec("/cam/0", rate_hz=30)], small)
    stream = packets(0, 30)
    with pytest.raises(LimitError, match="time stamps advance"):
        [rec.writer.packet("/cam/0", 0, data) for _ in range(100) for _, data, _ in stream]


def test_packets_that_go_back_in_time_are_refused() -> None:
    rec = Recording([TopicSpec("/cam/0", rate_hz=30)])
    stream = packets(0, 10)
    rec.writer.packet("/cam/0", stream[0][0], stream[0][1])
    rec.writer.packet("/cam/0", stream[2][0], stream[2][1])
    with pytest.raises(UnsupportedError, match="decode order"):
        rec.writer.packet("/cam/0", stream[1][0], stream[1][1])


def test_the_first_packet_is_an_idr() -> None:
    rec = Recording([TopicSpec("/cam/0", rate_hz=30)])
    with pytest.raises(UnsupportedError, match="no IDR"):
        rec.writer.packet("/cam/0", 0, packets(0, 10)[1][1])


def test_cameras_passed_through_with_idrs_on_other_ticks_share_chunks_that_still_start_with_idrs(
    tmp_path: Path,
) -> None:
    # given one camera with an IDR each 10 frames and one each 15
    a, b = encode(60), encode(60, keyint="15")
    rec = Recording([TopicSpec("/a", rate_hz=30), TopicSpec("/b", rate_hz=30)])
    for k in range(60):
        rec.writer.packet("/a", stamp(k), a[k])
        rec.writer.packet("/b", stamp(k), b[k])
    receipt = rec.close()
    rec.sound(tmp_path)
    # then chunks are cut where both start anew, each 30 frames
    assert len(receipt.groups[0].chunks) == 2
    assert receipt.counts["unaligned_idr"] > 0
    answer = rec.reader().read([Window.at("/a", stamp(44)), Window.at("/b", stamp(44))])
    assert answer["/a"][0].tolist() == answer["/b"][0].tolist() == [stamp(44)]


# ---- kinds of topics


def test_every_kind_of_topic_comes_back(tmp_path: Path) -> None:
    topics = [
        TopicSpec("/cam", rate_hz=30),
        TopicSpec("/depth", TopicKind.DEPTH, rate_hz=30),
        TopicSpec("/lidar", TopicKind.LIDAR),
        TopicSpec("/mic", TopicKind.AUDIO),
        TopicSpec("/skin", TopicKind.TACTILE, names=("t0", "t1")),
        TopicSpec("/task", TopicKind.TEXT),
        TopicSpec("/events", TopicKind.EVENT),
        TopicSpec(
            "/own",
            TopicKind.OTHER,
            schema="acme.Thing",
            encoding="json",
            schema_encoding="jsonschema",
            schema_data=b"{}",
        ),
        state(),
    ]
    rec = Recording(topics)
    rng = np.random.default_rng(3)
    depths = [rng.integers(0, 65536, (48, 64), dtype=np.uint16) for _ in range(20)]
    for k in range(20):
        t = stamp(k)
        rec.writer.frame("/cam", t, picture(0, k))
        rec.writer.frame("/depth", t, depths[k])
        rec.writer.points("/lidar", t, rng.normal(size=(100, 3)))
        rec.writer.audio("/mic", t, np.arange(160, dtype=np.int16), 16_000)
        rec.writer.rows("/skin", t, [k, -k])
        rec.writer.message("/own", t, b'{"k": %d}' % k)
        rec.writer.rows("/state/0", t, row(0, t))
    rec.writer.text("/task", stamp(0), "put the cup on the plate")
    rec.writer.text("/events", stamp(9), "grasp")
    rec.writer.attach("robot.urdf", "application/xml", b"<robot/>")
    rec.writer.attach("calibration.json", "application/json", b"{}", t_ns=7)
    rec.writer.describe("site", {"building": "7"})
    receipt = rec.close()
    rec.sound(tmp_path)
    # groups never share a chunk, each is one range, none overlaps
    assert [g.name for g in receipt.groups] == [
        "cameras",
        "depth",
        "lidar",
        "audio",
        "tactile",
        "events",
        "other",
        "state",
    ]
    ends = [(g.offset, g.offset + g.length) for g in receipt.groups]
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    answer = rec.reader().read(
        [Window.at(t.topic, stamp(12)) for t in topics if t.topic not in ("/task", "/events")]
        + [Window.at("/task", stamp(19), tolerance_ns=NS), Window.at("/events", stamp(12), tolerance_ns=NS)]
    )
    np.testing.assert_array_equal(answer["/depth"][1][0], depths[12])
    assert answer["/depth"][1].dtype == np.uint16
    assert answer["/skin"][1].tolist() == [[12.0, -12.0]]
    assert answer["/own"][1] == [b'{"k": 12}']
    assert answer["/task"][1] == ["put the cup on the plate"]
    assert answer["/events"][0].tolist() == [stamp(9)]
    reader = make_reader(io.BytesIO(rec.sink.getvalue()), validate_crcs=True)
    assert {a.name: a.data for a in reader.iter_attachments()}["robot.urdf"] == b"<robot/>"
    assert {m.name: m.metadata for m in reader.iter_metadata()}["site"] == {"building": "7"}


@pytest.mark.parametrize(("pixel_format", "dtype"), [("16UC1", np.uint16), ("32FC1", np.float32), ("mono8", np.uint8)])
def test_depth_is_what_its_topic_says(pixel_format: str, dtype: type, tmp_path: Path) -> None:
    rec = Recording([TopicSpec("/depth", TopicKind.DEPTH, rate_hz=30, pixel_format=pixel_format)])
    image = (np.arange(48 * 64).reshape(48, 64) % 251).astype(dtype)
    rec.writer.frame("/depth", stamp(0), image)
    other = np.float32 if dtype is not np.float32 else np.uint16
    with pytest.raises(UsageError, match=f"the topic is in {pixel_format}; declare"):
        rec.writer.frame("/depth", stamp(1), image.astype(other))
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.groups[0].topics[0].codec == pixel_format
    np.testing.assert_array_equal(rec.reader().read([Window.at("/depth", stamp(0))])["/depth"][1][0], image)


def test_a_tactile_image_stays_what_its_first_one_was() -> None:
    rec = Recording([TopicSpec("/skin", TopicKind.TACTILE)])
    rec.writer.frame("/skin", 0, np.zeros((8, 8), np.float32))
    with pytest.raises(UsageError, match="mono8, the topic is in 32FC1"):
        rec.writer.frame("/skin", 1, np.zeros((8, 8), np.uint8))


def test_values_that_are_no_numbers_come_back_as_they_were(tmp_path: Path) -> None:
    rec = Recording([state()])
    odd = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, 1.7e308])
    for k in range(30):
        rec.writer.rows("/state/0", stamp(k), odd if k % 7 == 3 else row(0, stamp(k)))
    rec.close()
    rec.sound(tmp_path)
    rows = rec.reader().read([Window.steps("/state/0", 0, 30)])["/state/0"][1]
    assert rows[3].tobytes() == odd.tobytes()
    np.testing.assert_array_equal(rows[4], row(0, stamp(4)))


def test_a_recording_without_cameras_is_an_episode(tmp_path: Path) -> None:
    rec = Recording([state()])
    for k in range(400):
        rec.writer.rows("/state/0", stamp(0) + k * 5_000_000, row(0, k))
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.gop_frames is None
    assert rec.reader().read([Window.steps("/state/0", 0, 400)])["/state/0"][1].shape == (400, 7)


@pytest.mark.parametrize("topics", [[], [TopicSpec("/a", rate_hz=30)]])
def test_an_episode_without_a_message_is_a_valid_file(topics: list[TopicSpec], tmp_path: Path) -> None:
    rec = Recording(topics)
    receipt = rec.close()
    rec.sound(tmp_path)
    assert receipt.missing == tuple(t.topic for t in topics)
    for spec in topics:
        assert rec.reader().read([Window.at(spec.topic, 5)])[spec.topic][2].all()


# ---- the file


def test_a_path_is_completed_under_a_temporary_name(tmp_path: Path) -> None:
    path = tmp_path / "e.mcap"
    writer = EpisodeWriter(path, episode_id=EPISODE, topics=specs(1, 1))
    writer.frame("/cam/0", stamp(0), picture(0, 0))
    assert not path.exists()
    receipt = writer.close()
    assert [p.name for p in tmp_path.iterdir()] == ["e.mcap"]
    assert path.stat().st_size == receipt.size_bytes
    assert writer.close() == receipt


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(1, 1))
    with pytest.raises(ZeroDivisionError), writer:
        writer.frame("/cam/0", stamp(0), picture(0, 1 // 0))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StateError, match="aborted"):
        writer.frame("/cam/0", 0, picture(0, 0))


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda w: w.frame("/cam/9", 0, picture(0, 0)), "not declared"),
        (lambda w: w.frame("/cam/0", -1, picture(0, 0)), "2.63"),
        (lambda w: w.frame("/cam/0", 0, picture(0, 0)[:47]), "even sides"),
        (lambda w: w.frame("/cam/0", 0, picture(0, 0).astype(np.float32)), "float32"),
        (
            lambda w: [w.frame("/cam/0", 0, picture(0, 0)), w.frame("/cam/0", 1, picture(0, 0, 96, 64))],
            "a camera that changes",
        ),
        (lambda w: w.frame("/state/0", 0, picture(0, 0)), "takes no images"),
        (lambda w: w.rows("/cam/0", 0, [1.0]), "takes no rows"),
        (lambda w: w.rows("/state/0", 0, [1.0]), "shape"),
        (lambda w: w.rows("/state/0", [-5], [[1.0] * 7]), "start at 0"),
        (lambda w: w.message("/state/0", 0, b""), "needs a TopicSpec"),
        (lambda w: [w.frame("/cam/0", 0, picture(0, 0)), w.packet("/cam/0", 1, packets(0, 10)[0][1])], "group"),
        (lambda w: w.attach("tg.index", "x", b""), "belong to the format"),
        (lambda w: w.attach("x", "y", b"", t_ns=-5), "2.63"),
        (lambda w: w.rows("/state/0", [[1, 2]], [[1.0] * 7]), "int64 .n."),
        (lambda w: w.rows("/state/0", [1.5], [[1.0] * 7]), "times of float64"),
        (lambda w: w.rows("/state/0", [1, 2, 3], [1.0] * 7), "shape"),
        (lambda w: w.frame(TopicSpec("/\ud800").topic, 0, picture(0, 0)), "half a pair"),
        (lambda w: w.text("/state/0", 0, "x"), "not text"),
    ],
)
def test_wrong_calls_say_what_is_wrong(call: object, what: str, tmp_path: Path) -> None:
    writer = EpisodeWriter(tmp_path / "e.mcap", episode_id=EPISODE, topics=specs(1, 1, width=0, height=0))
    with pytest.raises((UsageError, UnsupportedError), match=what):
        call(writer)  # type: ignore[operator]  # a callable, typed loosely for the table
    writer.abort()
    assert list(tmp_path.iterdir()) == []


def test_live_mode_reaches_the_disk_within_a_second_of_recording(tmp_path: Path) -> None:
    path = tmp_path / "e.mcap"
    writer = EpisodeWriter(path, episode_id=EPISODE, topics=specs(2, 1), live=True)
    streams = [packets(c, 120) for c in range(2)]
    for k in range(120):
        for c in range(2):
            writer.packet(f"/cam/{c}", *streams[c][k][:2])
        writer.rows("/state/0", stamp(k), row(0, stamp(k)))
    # when the power goes now: what other processes see on the disk
    (part,) = tmp_path.iterdir()
    from kinemill.episode.repack import repack

    report = repack(part, tmp_path / "saved.mcap")
    # then no more than the reorder window and one cut are missing (0.5 s + 1 s of 4 s)
    assert report.messages_out >= 3 * (120 - 45)
    writer.abort()


def test_our_own_encoder_meets_the_rules_that_packets_are_held_to() -> None:
    for profile in ("vla", "world"):
        for t_ns, data, idr in packets(1, 30, profile):
            assert check_packet(data, where=str(t_ns)).idr is idr
