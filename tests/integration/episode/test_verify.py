"""`verify` finds every flipped byte, wherever it lies."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from mcap.stream_reader import StreamReader

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeWriter, TopicSpec, profile_of
from kinemill.episode.scan import FileSource
from kinemill.episode.verify import VerifyReport, verify
from support.episode import EPISODE, fill, specs
from support.episode_records import Bytes

FLIPS = 1000


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An episode with all kinds of records: padding, attachments, metadata, three groups."""
    path = tmp_path_factory.mktemp("verify") / "e.mcap"
    topics = [*specs(2, 2), TopicSpec("/task", TopicKind.TEXT)]
    writer = EpisodeWriter(path, episode_id=EPISODE, topics=topics, metadata={"robot": "arm"})
    fill(writer, cameras=2, states=2, frames=30)
    writer.text("/task", 6_000_000_000, "stack the blocks")
    writer.attach("robot.urdf", "application/xml", b"<robot name='arm'/>" * 5)
    writer.describe("site", {"building": "7"})
    writer.close()
    return path.read_bytes()


def check(data: bytes) -> VerifyReport:
    return verify(Bytes(data), deep=True)


def sections(data: bytes) -> dict[str, list[tuple[int, int]]]:
    """name -> (start, end) of every stretch of the file, nothing left out."""
    import io
    import struct

    names = {1: "header", 2: "footer", 3: "schema", 4: "channel", 6: "chunk", 7: "message_index", 8: "chunk_index"}
    names |= {9: "attachment", 10: "attachment_index", 11: "statistics", 12: "metadata", 13: "metadata_index"}
    names |= {14: "summary_offset", 15: "data_end"}
    found: dict[str, list[tuple[int, int]]] = {"magic": [(0, 8), (len(data) - 8, len(data))]}
    at, in_summary = 8, False
    while at < len(data) - 8:
        op, length = struct.unpack_from("<BQ", data, at)
        name = names[op] + (" of the summary" if in_summary and op in (3, 4) else "")
        found.setdefault(name, []).append((at, at + 9 + length))
        in_summary = in_summary or op == 15
        at += 9 + length
    assert len(list(StreamReader(io.BytesIO(data)).records)) > 10
    return found


def test_a_sound_file_has_no_finding(whole: bytes) -> None:
    report = check(whole)
    assert report.findings == []
    assert report.own
    assert report.chunks > 6


def test_a_thousand_flips_are_all_found_and_every_section_has_its_share(whole: bytes) -> None:
    # given: every section of the file, and 1,000 seeded positions spread over them
    parts = sections(whole)
    assert len(parts) == 17
    rng = random.Random(20261130)
    missed = []
    names = sorted(parts)
    for i in range(FLIPS):
        name = names[i % len(names)]
        start, end = rng.choice(parts[name])
        at = rng.randrange(start, end)
        raw = bytearray(whole)
        raw[at] ^= rng.randrange(1, 256)
        # when
        if check(bytes(raw)).ok:
            missed.append((name, at))
    # then
    assert missed == []


def test_every_single_byte_outside_chunks_is_covered(whole: bytes) -> None:
    """The small records are short enough to try each byte of them."""
    parts = sections(whole)
    missed = []
    for name in ("magic", "footer", "data_end", "header", "statistics", "summary_offset", "metadata_index"):
        for start, end in parts[name]:
            for at in range(start, end):
                raw = bytearray(whole)
                raw[at] ^= 0x80
                if check(bytes(raw)).ok:
                    missed.append((name, at))
    assert missed == []


@pytest.mark.parametrize("keep", [0, 5, 8, 100, 0.3, 0.9, -1, -8, -30])
def test_a_cut_file_is_found(whole: bytes, keep: float) -> None:
    cut = whole[: int(keep * len(whole))] if 0 < keep < 1 else whole[: int(keep)]
    assert not check(cut).ok


def test_bytes_behind_the_end_are_found(whole: bytes) -> None:
    assert not check(whole + b"\0").ok


def test_an_index_that_lies_is_found_even_where_its_checksum_is_right(whole: bytes) -> None:
    # given a summary whose chunk index names another time, and a fresh summary crc
    import struct

    from kinemill.episode.checksum import crc32

    parts = sections(whole)
    raw = bytearray(whole)
    start, _ = parts["chunk_index"][1]
    raw[start + 9] ^= 1
    summary = parts["schema of the summary"][0][0]
    raw[-12:-8] = struct.pack("<I", crc32(bytes(raw[summary:-12])))
    # when
    report = check(bytes(raw))
    # then
    assert [f.code for f in report.findings] == ["summary"]
    assert "says other than the chunk" in report.findings[0].text


def test_expected_hash_and_size_are_compared(whole: bytes) -> None:
    assert [f.code for f in verify(Bytes(whole), sha256="0" * 12, size_bytes=1).findings] == ["size", "sha256"]


def test_padding_of_big_chunks_is_under_the_check_too(tmp_path: Path) -> None:
    import numpy as np

    profile = profile_of("world", gop_frames=2, chunk_bytes=4 << 20, crf=1.0, preset="ultrafast")
    path = tmp_path / "e.mcap"
    rng = np.random.default_rng(1)
    with EpisodeWriter(path, episode_id=EPISODE, profile=profile, topics=[TopicSpec("/a", rate_hz=30)]) as writer:
        for k in range(12):
            writer.frame("/a", k * 33_000_000, rng.integers(0, 256, (720, 960, 3), dtype=np.uint8))
    data = bytearray(path.read_bytes())
    assert writer.receipt is not None
    first = writer.receipt.groups[0].chunks.offset[0]
    assert first == 1 << 20
    with FileSource(path) as source:
        assert verify(source).ok
    data[first - 100] = 1
    assert {f.code for f in check(bytes(data)).findings} == {"padding", "data_crc"}
