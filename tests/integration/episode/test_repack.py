"""Repack: stock MCAP, cut, live and hostile files become episodes, or a clear error."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from mcap.writer import CompressionType, IndexType, Writer

from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, Window
from kinemill.episode.proto import text_field, timestamp
from kinemill.episode.repack import repack
from kinemill.errors import ConflictError, CorruptError, DataError, UnsupportedError
from support.episode import EPISODE, KEY, encode, jpeg, picture, row, small_episode, specs, stamp, stored
from support.stock import NAMES, is_frame, json_message, read, sound, stock, video_message


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
def test_stock_h264_that_meets_the_rules_is_passed_through(compression: CompressionType, tmp_path: Path) -> None:
    stream = encode(40)
    source = stock(tmp_path / "in.mcap", {"/front": stream, "/wrist": stream}, compression=compression, chunk_size=5000)
    report = repack(source, tmp_path / "out.mcap", episode_id=EPISODE)
    sound(tmp_path / "out.mcap")
    assert report.messages_out == report.messages_in == 80 + 133
    assert report.notes == []
    # then not a byte of video changed, and the groups are there
    from kinemill.episode.opened import open_chunk
    from kinemill.episode.proto import video_bytes

    (group, state) = report.receipt.groups
    assert (group.name, state.name) == ("cameras", "state")
    data = (tmp_path / "out.mcap").read_bytes()
    packets = []
    for offset, length in zip(group.chunks.offset, group.chunks.length, strict=True):
        chunk = open_chunk(data[offset : offset + length], where="")
        for start, end, channel in zip(chunk.offset, chunk.end, chunk.channel, strict=True):
            if channel == group.topics[0].channel_id:
                packets.append(bytes(video_bytes(chunk.data[start + 31 : end])[0]))
    assert packets == stream
    assert state.topics[0].names == NAMES
    answer = read(tmp_path / "out.mcap").read([Window.at("/front", stamp(23)), Window.at("/joint_states", stamp(24))])
    assert is_frame(answer["/front"][1][0], 0, 23, 40)
    np.testing.assert_array_equal(answer["/joint_states"][1][0], row(0, int(answer["/joint_states"][0][0])))


def jpeg_message(t: int, data: bytes) -> bytes:
    return timestamp(t) + text_field(2, data) + text_field(3, b"jpeg")


def cdr_image(t: int, data: bytes) -> bytes:
    head = b"\0\1\0\0" + struct.pack("<iI", t // 10**9, t % 10**9) + struct.pack("<I", 1) + b"\0\0\0\0"
    return head + struct.pack("<I", 5) + b"jpeg\0" + b"\0\0\0" + struct.pack("<I", len(data)) + data


@pytest.mark.parametrize(
    ("schema", "encoding", "make"),
    [
        ("foxglove.CompressedImage", "protobuf", jpeg_message),
        ("sensor_msgs/msg/CompressedImage", "cdr", cdr_image),
    ],
)
def test_jpeg_is_encoded_anew(schema: str, encoding: str, make: Callable[[int, bytes], bytes], tmp_path: Path) -> None:
    images = [jpeg(picture(0, k)) for k in range(30)]
    source = stock(tmp_path / "in.mcap", {"/front": images}, schema=schema, encoding=encoding, make=make)
    with pytest.raises(UnsupportedError, match="mjpeg"):
        repack(source, tmp_path / "no.mcap", transcode="never")
    report = repack(source, tmp_path / "out.mcap", profile="vla")
    sound(tmp_path / "out.mcap")
    assert report.counts["topics_encoded_anew"] == 1
    reader = read(tmp_path / "out.mcap")
    for k in (0, 13, 29):
        assert is_frame(reader.read([Window.at("/front", stamp(k))])["/front"][1][0], 0, k, 30)


def test_b_frames_are_encoded_anew_in_display_order(tmp_path: Path) -> None:
    # given packets in decode order, stamped in that order, as a naive recorder writes them
    stream = encode(30, bframes="2", **{"b-adapt": "0"})
    source = stock(tmp_path / "in.mcap", {"/front": stream})
    report = repack(source, tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert report.messages_out == report.messages_in
    assert any("B" in note for note in report.notes)


@pytest.mark.parametrize("codec", ["libvpx-vp9", "libx265"])
def test_other_codecs_are_encoded_anew(codec: str, tmp_path: Path) -> None:
    import av

    try:
        context = av.VideoCodecContext.create(codec, "w")
    except av.FFmpegError:
        from support.layers import skip

        skip(f"PyAV was built without {codec}", run="make test with PyAV's own wheels")
    context.width, context.height, context.pix_fmt = 64, 48, "yuv420p"
    from fractions import Fraction

    context.time_base, context.framerate = Fraction(1, 30), Fraction(30)
    context.options = {
        "lag-in-frames": "0",
        "x265-params": "log-level=none:bframes=0:keyint=10:repeat-headers=1:pools=1",
    }
    packets = []
    for k in range(12):
        frame = av.VideoFrame.from_ndarray(picture(0, k), format="rgb24")
        frame.pts = k
        packets += [bytes(p) for p in context.encode(frame.reformat(format="yuv420p"))]
    packets += [bytes(p) for p in context.encode(None)]
    name = "vp9" if "vp9" in codec else "h265"
    source = stock(tmp_path / "in.mcap", {"/front": packets}, make=lambda t, data: video_message(t, data, name))
    repack(source, tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert is_frame(read(tmp_path / "out.mcap").read([Window.at("/front", stamp(7))])["/front"][1][0], 0, 7, 12)


def test_base64_video_in_json_is_unpacked(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(20)}, encoding="json", make=json_message)
    repack(source, tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert is_frame(read(tmp_path / "out.mcap").read([Window.at("/front", stamp(7))])["/front"][1][0], 0, 7, 20)


def test_video_split_over_messages_is_refused_by_name(tmp_path: Path) -> None:
    """foxglove/mcap 1198: a stream in pieces of 512 KB."""
    joined = b"".join(encode(20))
    pieces = [joined[i : i + 400] for i in range(0, len(joined), 400)]
    source = stock(tmp_path / "in.mcap", {"/front": pieces}, encoding="json", make=json_message)
    with pytest.raises(UnsupportedError, match=r"/front.*(frame|picture|Annex B)"):
        repack(source, tmp_path / "out.mcap", transcode="never")
    assert not (tmp_path / "out.mcap").exists()


@pytest.mark.parametrize("profile", ["vla", "world"])
def test_a_live_recording_becomes_what_a_convert_writer_writes(profile: str, tmp_path: Path) -> None:
    live, _ = small_episode(2, 2, 60, profile, True)
    ordered, receipt = small_episode(2, 2, 60, profile)
    (tmp_path / "live.mcap").write_bytes(live)
    report = repack(tmp_path / "live.mcap", tmp_path / "out.mcap")
    assert report.receipt == receipt
    assert (tmp_path / "out.mcap").read_bytes() == ordered


@pytest.mark.parametrize("keep", [0.2, 0.5, 0.8, 0.97])
@pytest.mark.parametrize("profile", ["vla", "world"])
def test_a_cut_file_keeps_every_complete_chunk(profile: str, keep: float, tmp_path: Path) -> None:
    data, receipt = small_episode(2, 2, 60, profile, True)
    cut = int(len(data) * keep)
    (tmp_path / "cut.mcap").write_bytes(data[:cut])
    complete = sum(
        n
        for g in receipt.groups
        for o, size, n in zip(g.chunks.offset, g.chunks.length, g.chunks.messages, strict=True)
        if o + size <= cut
    )
    if complete == 0:
        with pytest.raises(DataError):
            repack(tmp_path / "cut.mcap", tmp_path / "out.mcap")
        return
    report = repack(tmp_path / "cut.mcap", tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert report.messages_in == complete
    assert report.messages_out == complete
    assert report.receipt.episode_id == EPISODE


def test_a_damaged_chunk_is_dropped_and_the_camera_waits_for_its_next_idr(tmp_path: Path) -> None:
    data, receipt = small_episode(2, 2, 60, "vla", True)
    cameras = receipt.groups[0].chunks
    raw = bytearray(data)
    raw[cameras.offset[0] + cameras.length[0] - 5] ^= 1
    (tmp_path / "bad.mcap").write_bytes(raw)
    report = repack(tmp_path / "bad.mcap", tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert report.counts["chunks_dropped"] == 1
    lost = cameras.messages[0] + report.counts.get("frames_without_idr", 0)
    assert report.receipt.groups[0].messages == 120 - lost


def test_an_index_that_lies_is_not_believed(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(20)}, chunk_size=2000)
    data = bytearray(source.read_bytes())
    (start,) = struct.unpack_from("<Q", data, len(data) - 8 - 20)
    for i in range(start, len(data) - 40, 11):  # the whole summary is nonsense
        data[i] ^= 0x55
    source.write_bytes(data)
    report = repack(source, tmp_path / "out.mcap")
    sound(tmp_path / "out.mcap")
    assert report.messages_out == 20 + 66


def test_files_without_any_index_are_read(tmp_path: Path) -> None:
    """foxglove/mcap 1735 and friends."""
    for i, options in enumerate(
        ({"index_types": IndexType.NONE}, {"use_chunking": False}, {"use_summary_offsets": False})
    ):
        source = stock(tmp_path / f"in{i}.mcap", {"/front": encode(20)}, **options)
        repack(source, tmp_path / f"out{i}.mcap")
        sound(tmp_path / f"out{i}.mcap")


def test_43000_tiny_chunks(tmp_path: Path) -> None:
    """Each message a chunk of its own; memory and time stay in proportion."""
    path = tmp_path / "in.mcap"
    with path.open("wb") as out:
        writer = Writer(out, chunk_size=1, compression=CompressionType.NONE, index_types=IndexType.NONE)
        writer.start()
        channel = writer.register_channel("/tiny", "json", writer.register_schema("T", "jsonschema", b"{}"))
        for k in range(43_000):
            writer.add_message(channel, k * 1_000_000, b"{}", k * 1_000_000, k)
        writer.finish()
    report = repack(path, tmp_path / "out.mcap")
    assert report.messages_out == 43_000
    assert len(report.receipt.groups[0].chunks) == 43


def clashing(path: Path) -> Path:
    with path.open("wb") as out:
        writer = Writer(out)
        writer.start()
        for i, name in enumerate(("A", "B")):
            channel = writer.register_channel("/same", "json", writer.register_schema(name, "jsonschema", b"{}"))
            writer.add_message(channel, i, b"{}", i, i)
        writer.finish()
    return path


def test_two_topics_of_one_name_are_refused_or_renamed(tmp_path: Path) -> None:
    source = clashing(tmp_path / "in.mcap")
    with pytest.raises(UnsupportedError, match="two topics are named /same"):
        repack(source, tmp_path / "out.mcap")
    report = repack(source, tmp_path / "out.mcap", clashes="rename")
    assert {t.topic for g in report.receipt.groups for t in g.topics} == {"/same", "/same_2"}


def hostile(name: str) -> bytes:
    from kinemill.episode import wire

    head = wire.MAGIC + wire.record(1, wire.string("") + wire.string("x"))
    if name == "bomb":
        import zstandard

        data = zstandard.compress(bytes(300 << 20))
        return head + wire.chunk_record(0, 0, raw_size=1 << 40, crc=0, compression=b"zstd", data_size=len(data)) + data
    if name == "absurd":
        return head + wire.RECORD_HEAD.pack(6, 1 << 62) + bytes(100)
    if name == "huge":
        return head + wire.RECORD_HEAD.pack(9, 2 << 30)
    return b"not an mcap at all, but long enough to look like one"


@pytest.mark.parametrize("name", ["bomb", "absurd", "huge", "other"])
def test_hostile_files_end_in_a_typed_error_within_bounded_memory(name: str, tmp_path: Path) -> None:
    import resource

    path = tmp_path / "in.mcap"
    path.write_bytes(hostile(name))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if name == "huge":
        with path.open("r+b") as out:
            out.truncate(3 << 30)  # sparse
    with pytest.raises(DataError):
        repack(path, tmp_path / "out.mcap")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # KiB


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out.mcap").write_bytes(b"precious")
    source = stock(tmp_path / "in.mcap", {"/front": encode(10)})
    with pytest.raises(ConflictError, match="exists"):
        repack(source, tmp_path / "out.mcap")
    assert (tmp_path / "out.mcap").read_bytes() == b"precious"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.mcap", "out.mcap"]


def test_a_result_that_does_not_read_back_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """foxglove/mcap 1474: recovered "ok", and unreadable."""
    source = stock(tmp_path / "in.mcap", {"/front": encode(10)})
    original = EpisodeWriter.close

    def and_then_a_disk_error(self: EpisodeWriter) -> object:
        receipt = original(self)
        assert self._path is not None
        with self._path.open("r+b") as out:
            out.seek(receipt.groups[0].offset + 60)
            out.write(b"\xff\xff")
        return receipt

    monkeypatch.setattr(EpisodeWriter, "close", and_then_a_disk_error)
    with pytest.raises(CorruptError, match="does not read back"):
        repack(source, tmp_path / "out.mcap")
    assert [p.name for p in tmp_path.iterdir()] == ["in.mcap"]


def test_a_stock_file_is_read_in_place_too(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", {"/front": encode(40)}, chunk_size=3000)
    reader = EpisodeReader.open(stored(source.read_bytes()), KEY)
    # frames whose GOP starts in a chunk before are found by going back
    for k in (0, 9, 25, 39):
        answer = reader.read([Window.at("/joint_states", stamp(k)), Window.at("/front", stamp(k))])
        assert answer["/joint_states"][1].shape == (1, 7)
        assert is_frame(answer["/front"][1][0], 0, k, 40)


def test_topics_are_kept_by_a_second_repack(tmp_path: Path) -> None:
    data, receipt = small_episode(2, 2, 30)
    (tmp_path / "a.mcap").write_bytes(data)
    again = repack(tmp_path / "a.mcap", tmp_path / "b.mcap")
    assert again.receipt == receipt
    assert Layout.from_receipt(again.receipt).topics_json() == Layout.from_receipt(receipt).topics_json()
    assert len(specs(2, 2)) == 4
    assert io.BytesIO((tmp_path / "b.mcap").read_bytes()).getvalue() == data
