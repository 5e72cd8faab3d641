"""Frames that were lost, before the recording or with a damaged chunk: what depends on them is left out."""

from __future__ import annotations

import struct
from collections.abc import Collection
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from mcap.writer import CompressionType, Writer

from kinemill.episode import EpisodeReader, EpisodeWriter, TopicSpec, Window
from kinemill.episode.proto import video_prefix, video_suffix
from kinemill.episode.repack import RepackReport, repack
from kinemill.episode.scan import FileSource
from kinemill.episode.schemas import schema_for
from kinemill.episode.verify import verify
from support.episode import EPISODE, KEY, NS, encode, picture, stamp, stored


def stock(path: Path, units: list[bytes], lost: Collection[int] = (), codec: str = "h264") -> Path:
    known = schema_for(TopicSpec("/x", rate_hz=30))
    with path.open("wb") as out:
        writer = Writer(out, chunk_size=600, compression=CompressionType.NONE)
        writer.start()
        video = writer.register_schema(known.name, known.encoding, known.data)
        channel = writer.register_channel("/front", "protobuf", video)
        for k, data in enumerate(units):
            if k not in lost:
                t = stamp(k)
                writer.add_message(channel, t, video_prefix(t, b"", len(data)) + data + video_suffix(codec), t, k)
        writer.finish()
    return path


def damage(path: Path, number: int) -> None:
    """Turn over a byte of a chunk."""
    raw = bytearray(path.read_bytes())
    at, seen = 8, 0
    while seen < number:
        op, length = struct.unpack_from("<BQ", raw, at)
        seen += op == 6
        if seen == number:
            raw[at + 69] ^= 0xFF
        at += 9 + length
    path.write_bytes(raw)


def right_frames(path: Path, report: RepackReport) -> list[int]:
    """Numbers of the frames in an episode, all of which show what they should."""
    with FileSource(path) as source:
        assert verify(source, deep=True).findings == []
    reader = EpisodeReader.open(stored(path.read_bytes()), KEY, layout=report.receipt)
    times, pictures, _ = reader.read([Window.between("/front", 0, 1 << 62)])["/front"]
    found = [round((int(t) - stamp(0)) / NS * 30) for t in times]
    for k, image in zip(found, pictures, strict=True):
        errors = [np.abs(image.astype(int) - picture(0, n)).mean() for n in range(30)]
        assert int(np.argmin(errors)) == k
        assert min(errors) < 8
    return found


def test_a_frame_lost_before_the_recording_ends_its_gop(tmp_path: Path) -> None:
    source = stock(tmp_path / "in.mcap", encode(30), lost={13})
    report = repack(source, tmp_path / "out.mcap")
    assert right_frames(tmp_path / "out.mcap", report) == [*range(13), *range(20, 30)]
    assert report.counts == {"frames_lost_before": 1, "frames_without_idr": 6}


@pytest.mark.parametrize("damaged", [False, True], ids=["lost", "damaged_chunk"])
def test_what_is_encoded_anew_waits_for_an_idr_too(damaged: bool, tmp_path: Path) -> None:
    # given a stream that has to be encoded anew, with a hole in its second GOP
    source = stock(tmp_path / "in.mcap", encode(30), lost=() if damaged else {13})
    if damaged:
        damage(source, 4)
    # when
    report = repack(source, tmp_path / "out.mcap", transcode="always")
    # then no frame shows what a decoder invented
    found = right_frames(tmp_path / "out.mcap", report)
    assert set(range(20, 30)) <= set(found)
    assert len(found) < 30
    assert report.counts["frames_without_idr"] > 0


@pytest.mark.parametrize(("codec", "encoder"), [("h265", "libx265"), ("vp9", "libvpx-vp9")])
def test_other_codecs_wait_for_a_key_frame_behind_a_hole(codec: str, encoder: str, tmp_path: Path) -> None:
    # given a stream of a codec that has to be encoded anew, with a key frame every ten frames and a damaged chunk
    units = foreign_stream(encoder)
    source = stock(tmp_path / "in.mcap", units, codec=codec)
    damage(source, 4)
    # when
    report = repack(source, tmp_path / "out.mcap")
    # then some frames are there, the last GOP's among them, and none was invented
    found = right_frames(tmp_path / "out.mcap", report)
    assert set(range(20, 30)) <= set(found)
    assert 10 < len(found) < 30
    assert report.counts["frames_without_idr"] > 0


def foreign_stream(encoder: str) -> list[bytes]:
    context = av.VideoCodecContext.create(encoder, "w")
    context.width, context.height, context.pix_fmt, context.time_base = 64, 48, "yuv420p", Fraction(1, 30)
    quiet = "keyint=10:min-keyint=10:scenecut=0:bframes=0:log-level=none"
    context.options = (
        {"x265-params": quiet, "preset": "ultrafast"}
        if encoder == "libx265"
        else {"g": "10", "lag-in-frames": "0", "deadline": "realtime", "cpu-used": "8", "b": "4000000"}
    )
    packets = []
    for k in range(30):
        frame = av.VideoFrame.from_ndarray(picture(0, k), format="rgb24").reformat(format="yuv420p")
        frame.pts = k
        packets += context.encode(frame)
    return [bytes(packet) for packet in [*packets, *context.encode(None)]]


def test_a_writer_keeps_and_counts_what_was_lost_before_it(tmp_path: Path) -> None:
    # given packets of which two are missing, written as they come, since nobody can record them again
    with (tmp_path / "out.mcap").open("wb") as out:
        writer = EpisodeWriter(out, episode_id=EPISODE, topics=[TopicSpec("/front", rate_hz=30)], profile="vla")
        for k, data in enumerate(encode(30)):
            if k not in (13, 14):
                writer.packet("/front", stamp(k), data)
        receipt = writer.close()
    # then the receipt tells, and repack leaves out what a decoder would invent
    assert receipt.counts["frames_lost_before"] == 2
    report = repack(tmp_path / "out.mcap", tmp_path / "clean.mcap")
    assert right_frames(tmp_path / "clean.mcap", report) == [*range(13), *range(20, 30)]
