"""Repack of what power cuts, bad disks and odd recorders leave: all that is sound is kept, nothing is invented."""

from __future__ import annotations

import errno
import io
import os
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.writer import CompressionType, Writer

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec, Window, profile_of
from kinemill.episode.proto import text_field, timestamp
from kinemill.episode.repack import repack
from kinemill.episode.scan import FileSource, records_in
from kinemill.errors import ConflictError, CorruptError, EnvironmentFault, UnsupportedError
from support.episode import EPISODE, encode, packets, picture, row, small_episode, specs, stamp
from support.stock import is_frame, json_message, read, sound, stock, video_message


def chunks(path: Path) -> list[tuple[int, int]]:
    with FileSource(path) as source:
        return [(r.offset, len(r.data)) for r in records_in(source) if r.op == 6]


def damage(path: Path, number: int) -> Path:
    offset, length = chunks(path)[number]
    data = bytearray(path.read_bytes())
    data[offset + length - 20] ^= 1
    path.write_bytes(data)
    return path


def plain(path: Path, topics: dict[str, list[tuple[int, bytes]]], schema: str = "A", **metadata: str) -> Path:
    """A stock file of JSON messages (or of `schema` in CDR, where it names a ROS package)."""
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        encoding = "cdr" if "/" in schema else "json"
        number = writer.register_schema(schema, "ros2msg" if encoding == "cdr" else "jsonschema", b"{}")
        for topic, messages in topics.items():
            channel = writer.register_channel(topic, encoding, number, metadata=metadata)
            for t_ns, data in messages:
                writer.add_message(channel, t_ns, data, t_ns)
        writer.finish()
    return path


# ---- half-written and damaged files


@pytest.mark.parametrize("tail", [bytes(9), bytes(100_000), b"\xff" * 100_000, b"\x05" + bytes(50)])
def test_a_tail_that_a_power_cut_left_is_cut_off(tail: bytes, tmp_path: Path) -> None:
    data, _ = small_episode(2, 2, 60, "vla", True)
    (tmp_path / "whole.mcap").write_bytes(data)
    end = sum(chunks(tmp_path / "whole.mcap")[2])
    (tmp_path / "cut.mcap").write_bytes(data[:end])
    expected = repack(tmp_path / "cut.mcap", tmp_path / "expected.mcap")
    (tmp_path / "tail.mcap").write_bytes(data[:end] + tail)
    report = repack(tmp_path / "tail.mcap", tmp_path / "out.mcap")
    assert len(tail) - 9 <= report.counts["bytes_cut"] <= len(tail)
    assert report.receipt == expected.receipt


def test_a_cut_anywhere_is_saved_or_refused_by_name(tmp_path: Path) -> None:
    """kill -9 at any moment, in 150 seeded places."""
    data, receipt = small_episode(1, 1, 60, "vla", True)
    table = sorted(
        (offset + length, messages)
        for g in receipt.groups
        for offset, length, messages in zip(g.chunks.offset, g.chunks.length, g.chunks.messages, strict=True)
    )
    rng = np.random.default_rng(0)
    for number, cut in enumerate(rng.integers(0, len(data), 150).tolist()):
        (tmp_path / "cut.mcap").write_bytes(data[:cut])
        complete = sum(n for end, n in table if end <= cut)
        target = tmp_path / f"{number}.mcap"
        if complete:
            assert repack(tmp_path / "cut.mcap", target).messages_out == complete
        else:
            with pytest.raises(CorruptError):
                repack(tmp_path / "cut.mcap", target)
        target.unlink(missing_ok=True)
    assert [p.name for p in tmp_path.iterdir()] == ["cut.mcap"]


def test_channels_of_a_damaged_first_chunk_are_found_in_the_summary(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(40)}, chunk_size=3000)
    report = repack(damage(source, 0), tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert report.counts["chunks_dropped"] == 1
    assert report.messages_out > 100


def test_damaged_metadata_does_not_cost_the_rest(tmp_path: Path) -> None:
    data = bytearray(small_episode(1, 1, 30)[0])
    (tmp_path / "whole.mcap").write_bytes(data)
    with FileSource(tmp_path / "whole.mcap") as source:
        (at,) = (r.offset for r in records_in(source) if r.op == 12)
    struct.pack_into("<I", data, at + 9, 1 << 30)  # the length of its name
    (tmp_path / "in.mcap").write_bytes(data)
    report = repack(tmp_path / "in.mcap", tmp_path / "out.mcap", episode_id=EPISODE)
    assert report.counts["metadata_dropped"] == 1
    assert report.messages_out == report.messages_in == 230


def test_pictures_behind_a_hole_wait_for_the_next_key_frame(tmp_path: Path) -> None:
    # given VP9, which has to be encoded anew, with a chunk lost: a decoder would go on with the wrong picture
    import av

    context = av.VideoCodecContext.create("libvpx-vp9", "w")
    context.width, context.height, context.pix_fmt = 64, 48, "yuv420p"
    context.time_base, context.framerate, context.gop_size = Fraction(1, 30), Fraction(30), 20
    context.options = {"lag-in-frames": "0", "auto-alt-ref": "0"}
    stream = []
    for k in range(60):
        frame = av.VideoFrame.from_ndarray(picture(0, k), format="rgb24")
        frame.pts = k
        stream += [bytes(p) for p in context.encode(frame.reformat(format="yuv420p"))]
    source = stock(
        tmp_path / "in.mcap",
        {"/front": stream},
        make=lambda t, data: video_message(t, data, "vp9"),
        chunk_size=1500,
        compression=CompressionType.NONE,
    )
    lost = len(chunks(source)) // 2
    report = repack(damage(source, lost), tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    # then each picture that is there is the one of its time
    t_ns, pictures, _ = read(tmp_path / "out.mcap").read([Window.between("/front", 0, 1 << 62)])["/front"]
    frames = [round((t - stamp(0)) * 30 / 1e9) for t in t_ns.tolist()]
    assert 20 <= len(frames) < 60
    assert report.counts["frames_without_idr"] > 0
    for k, image in zip(frames, pictures, strict=True):
        assert is_frame(image, 0, k, 60)


# ---- odd recorders


@pytest.mark.parametrize("profile", [None, "vla", "world"])
def test_the_receipt_tells_the_gops_that_are_there(profile: str | None, tmp_path: Path) -> None:
    """A profile's own length is only that of frames which are encoded here."""
    source = stock(tmp_path / "in.mcap", {"/front": encode(45)})
    assert repack(source, tmp_path / "out.mcap", profile=profile).receipt.gop_frames == 10
    (tmp_path / "own.mcap").write_bytes(small_episode(1, 1, 30)[0])
    assert repack(tmp_path / "own.mcap", tmp_path / "own-out.mcap", profile=profile).receipt.gop_frames == 5
    always = repack(source, tmp_path / "anew.mcap", profile=profile, transcode="always")
    assert always.receipt.gop_frames == (120 if profile == "world" else 5)


def test_b_frames_come_out_at_the_time_of_their_display(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(40, bframes="2", **{"b-adapt": "0"})})
    repack(source, tmp_path / "out.mcap")
    reader = read(tmp_path / "out.mcap")
    for k in range(40):
        t_ns, pictures, _ = reader.read([Window.at("/front", stamp(k))])["/front"]
        assert t_ns.tolist() == [stamp(k)]
        assert is_frame(pictures[0], 0, k, 40)


@pytest.mark.parametrize("make", [video_message, json_message])
def test_video_in_pieces_is_refused_where_encoding_is_allowed_too(
    make: Callable[[int, bytes], bytes], tmp_path: Path
) -> None:
    """foxglove/mcap 1198: the pictures of such a stream have no times, and half of one decodes to something."""
    joined = b"".join(encode(60))
    pieces = [joined[i : i + 400] for i in range(0, len(joined), 400)]
    encoding = "json" if make is json_message else "protobuf"
    source = stock(tmp_path / "in.mcap", {"/front": pieces}, encoding=encoding, make=make)
    with pytest.raises(UnsupportedError, match=r"/front.*not one whole frame each"):
        repack(source, tmp_path / "out.mcap")
    assert [p.name for p in tmp_path.iterdir()] == ["in.mcap"]


def test_packets_with_lengths_instead_of_start_codes_are_refused_by_name(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(30, annexb=False)})
    with pytest.raises(UnsupportedError, match=r"/front.*not Annex B"):
        repack(source, tmp_path / "out.mcap")


def png16(image: np.ndarray) -> bytes:
    import av

    context = av.VideoCodecContext.create("png", "w")
    context.width, context.height, context.pix_fmt = image.shape[1], image.shape[0], "gray16be"
    context.time_base = Fraction(1, 30)
    frame = av.VideoFrame.from_ndarray(image, format="gray16le").reformat(format="gray16be")
    frame.pts = 0
    return b"".join(bytes(p) for p in [*context.encode(frame), *context.encode(None)])


def compressed_depth(t: int, data: bytes) -> bytes:
    text = b"16UC1; compressedDepth png\0"
    head = b"\0\1\0\0" + struct.pack("<iI", t // 10**9, t % 10**9) + struct.pack("<I", 1) + b"\0\0\0\0"
    head += struct.pack("<I", len(text)) + text + bytes(-len(text) % 4)
    return head + struct.pack("<I", 12 + len(data)) + bytes(12) + data


def test_depth_in_png_of_16_bits_is_never_encoded(tmp_path: Path) -> None:
    images = [png16(np.random.default_rng(k).integers(0, 65536, (48, 64), dtype=np.uint16)) for k in range(10)]
    source = stock(
        tmp_path / "in.mcap",
        {"/depth": images},
        schema="sensor_msgs/msg/CompressedImage",
        encoding="cdr",
        make=compressed_depth,
    )
    report = repack(source, tmp_path / "out.mcap")
    assert [(g.name, g.messages) for g in report.receipt.groups] == [("depth", 10), ("state", 33)]
    with (tmp_path / "out.mcap").open("rb") as stream:
        kept = [m.data for _, _, m in make_reader(stream).iter_messages(["/depth"])]
    assert kept == [compressed_depth(stamp(k), data) for k, data in enumerate(images)]


def raw_image(t: int, data: bytes) -> bytes:
    fixed = [bytes((n << 3 | 5,)) + struct.pack("<I", v) for n, v in ((2, 64), (3, 48), (5, 64))]
    return timestamp(t) + fixed[0] + fixed[1] + text_field(4, b"bayer_rggb8") + fixed[2] + text_field(6, data)


def test_what_is_not_understood_is_kept_as_it_is_and_said(tmp_path: Path) -> None:
    images = [bytes([k]) * (64 * 48) for k in range(10)]
    source = stock(tmp_path / "in.mcap", {"/front": images}, schema="foxglove.RawImage", make=raw_image)
    report = repack(source, tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert [n for n in report.notes if "/front is kept as it is" in n and "bayer_rggb8" in n]
    with (tmp_path / "out.mcap").open("rb") as stream:
        kept = [m.data for _, _, m in make_reader(stream).iter_messages(["/front"])]
    assert kept == [raw_image(stamp(k), data) for k, data in enumerate(images)]
    # and a state whose messages do not parse
    broken = plain(tmp_path / "b.mcap", {"/s": [(k, b"\0\1\0\0\1") for k in range(5)]}, "sensor_msgs/msg/JointState")
    assert "/s is kept as it is" in repack(broken, tmp_path / "b-out.mcap").notes[0]


@pytest.mark.parametrize("rate", ["nan", "-5", "1e99", "fast", ""])
def test_rates_that_cannot_be_are_not_believed(rate: str, tmp_path: Path) -> None:
    # given stamps in ms where ns belong, so that the measured rate cannot be either
    source = plain(tmp_path / "in.mcap", {"/a": [(33 * k, b"{}") for k in range(20)]}, rate_hz=rate)
    report = repack(source, tmp_path / "out.mcap")
    assert report.messages_out == 20
    assert report.receipt.groups[0].topics[0].rate_hz is None


def test_a_renamed_topic_never_takes_anothers_name(tmp_path: Path) -> None:
    path = tmp_path / "in.mcap"
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        for i, (topic, schema) in enumerate((("/same", "A"), ("/same", "B"), ("/same_2", "B"))):
            channel = writer.register_channel(topic, "json", writer.register_schema(schema, "jsonschema", b"{}"))
            writer.add_message(channel, i, b"%d" % i, i)
        writer.finish()
    report = repack(path, tmp_path / "out.mcap", clashes="rename")
    assert {t.topic: t.messages for g in report.receipt.groups for t in g.topics} == {
        "/same": 1,
        "/same_2": 1,
        "/same_2_2": 1,
    }


# ---- the result


@pytest.mark.parametrize("profile", ["vla", "own"])
def test_a_live_recording_of_every_kind_becomes_what_a_convert_writer_writes(profile: str, tmp_path: Path) -> None:
    chosen = profile_of("world", gop_frames=10, chunk_bytes=4000, crf=21.5) if profile == "own" else profile_of("vla")
    topics = [
        *specs(2, 1),
        TopicSpec("/never", rate_hz=30),
        TopicSpec("/depth", TopicKind.DEPTH, rate_hz=30),
        TopicSpec("/skin", TopicKind.TACTILE, names=("t0", "t1")),
        TopicSpec("/lidar", TopicKind.LIDAR),
        TopicSpec("/mic", TopicKind.AUDIO),
        TopicSpec("/task", TopicKind.TEXT),
        TopicSpec("/said", TopicKind.TEXT),
    ]
    files = []
    for live in (False, True):
        sink = io.BytesIO()
        writer = EpisodeWriter(sink, episode_id=EPISODE, profile=chosen, topics=topics, live=live)
        for k in range(60):
            t = stamp(k)
            for c in range(2):
                writer.packet(f"/cam/{c}", t, packets(c, 60, chosen)[k][1])
            writer.frame("/depth", t, np.full((48, 64), 100 * k, np.uint16))
            writer.rows("/skin", t, [k, -k])
            writer.points("/lidar", t, np.full((50, 3), k))
            writer.audio("/mic", t, np.full(160, k, np.int16), 16_000)
            writer.rows("/state/0", t, row(0, t))
        writer.text("/task", stamp(59), "fold the towel")
        writer.attach("robot.urdf", "application/xml", b"<robot/>")
        writer.describe("site", {"building": "7"})
        writer.close()
        files.append(sink.getvalue())
    (tmp_path / "live.mcap").write_bytes(files[1])
    report = repack(tmp_path / "live.mcap", tmp_path / "out.mcap")
    assert (tmp_path / "out.mcap").read_bytes() == files[0]
    assert report.receipt.missing == ("/never", "/said")
    assert report.receipt.gop_frames == chosen.gop_frames


def test_a_disk_without_hard_links_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    (tmp_path / "in.mcap").write_bytes(small_episode(1, 1, 30)[0])
    repack(tmp_path / "in.mcap", tmp_path / "out.mcap")
    assert (tmp_path / "out.mcap").read_bytes() == small_episode(1, 1, 30)[0]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.mcap", "out.mcap"]
    with pytest.raises(ConflictError):
        repack(tmp_path / "in.mcap", tmp_path / "out.mcap")


def test_a_target_in_no_folder_is_said_before_the_work(tmp_path: Path) -> None:
    (tmp_path / "in.mcap").write_bytes(small_episode(1, 1, 30)[0])
    with pytest.raises(EnvironmentFault, match="there is no folder"):
        repack(tmp_path / "in.mcap", tmp_path / "none/out.mcap")
