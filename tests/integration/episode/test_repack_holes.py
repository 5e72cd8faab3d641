"""Frames that were lost, before the recording or with a damaged chunk: what depends on them is left out."""

from __future__ import annotations

import struct
from collections.abc import Collection
from pathlib import Path

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


def stock(path: Path, units: list[bytes], lost: Collection[int] = ()) -> Path:
    known = schema_for(TopicSpec("/x", rate_hz=30))
    with path.open("wb") as out:
        writer = Writer(out, chunk_size=600, compression=CompressionType.NONE)
        writer.start()
        video = writer.register_schema(known.name, known.encoding, known.data)
        channel = writer.register_channel("/front", "protobuf", video)
        for k, data in enumerate(units):
            if k not in lost:
                t = stamp(k)
                writer.add_message(channel, t, video_prefix(t, b"", len(data)) + data + video_suffix("h264"), t, k)
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
