"""docs/episode-format.md is enough to write a reader: this one knows nothing but that page and MCAP's specification.

Nothing of `kinemill` reads here; it only writes the files.
"""

from __future__ import annotations

import itertools
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import EpisodeWriter, Layout, TopicSpec, profile_of
from support.episode import EPISODE, fill, picture, specs, stamp

MAGIC = b"\x89MCAP0\r\n"
Record = tuple[int, int, bytes]
"""opcode, offset, body"""


def records(data: bytes, at: int, end: int) -> Iterator[Record]:
    while at < end:
        op, length = struct.unpack_from("<BQ", data, at)
        yield op, at, data[at + 9 : at + 9 + length]
        at += 9 + length
    assert at == end


def text(body: bytes, at: int) -> tuple[str, int]:
    (size,) = struct.unpack_from("<I", body, at)
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size


def strings(body: bytes, at: int) -> dict[str, str]:
    (size,) = struct.unpack_from("<I", body, at)
    end, at, found = at + 4 + size, at + 4, {}
    while at < end:
        key, at = text(body, at)
        found[key], at = text(body, at)
    return found


class Numbers:
    """The packed layout: a byte of version, a byte of flags, LEB128."""

    def __init__(self, packed: bytes) -> None:
        assert packed[0] == 1
        self.with_crc = bool(packed[1] & 2)
        body = zlib.decompress(packed[2:], -15) if packed[1] & 1 else packed[2:]
        self.values = []
        value = shift = 0
        for byte in body:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                self.values.append(value)
                value = shift = 0

    def take(self, n: int) -> list[int]:
        found, self.values = self.values[:n], self.values[n:]
        assert len(found) == n
        return found

    def signed(self, n: int) -> list[int]:
        return [value >> 1 ^ -(value & 1) for value in self.take(n)]


def sums(values: list[int]) -> list[int]:
    found, total = [], 0
    for value in values:
        total += value
        found.append(total)
    return found


def unpack(topics_json: str, packed: bytes) -> list[dict[str, Any]]:
    """The tables of each group, by the page's list of numbers."""
    groups = json.loads(topics_json)["groups"]
    numbers = Numbers(packed)
    assert numbers.take(1) == [len(groups)]
    found, end = [], 0
    for group in groups:
        topics = len(group["topics"])
        (n,) = numbers.take(1)
        table: dict[str, Any] = {"name": group["name"], "n": n, "counts": [[] for _ in range(topics)]}
        found.append(table)
        if n == 0:
            continue
        if numbers.take(1) == [1]:
            for counts, number in zip(table["counts"], numbers.take(topics), strict=True):
                counts.append(number)
            for counts in table["counts"]:
                pairs = numbers.take(2 * counts.pop())
                for messages, chunks in zip(pairs[::2], pairs[1::2], strict=True):
                    counts.extend([messages] * chunks)
        base, table["skew_ns"], gops, t0 = numbers.take(4)
        (first,) = numbers.signed(1)
        lengths = numbers.signed(n)
        table["length"] = [value + base for value in lengths] if base else sums(lengths)
        gaps = numbers.signed(n - 1)
        table["offset"] = [end + first]
        for k, gap in enumerate(gaps):
            indexes = sum(15 + 16 * counts[k] for counts in table["counts"] if counts[k])
            table["offset"].append(table["offset"][k] + table["length"][k] + gap + indexes)
        steps = sums(numbers.signed(n))
        table["t_first"] = [t0 + value for value in sums(steps)]
        table["t_last"] = [t + d for t, d in zip(table["t_first"], sums(numbers.signed(n)), strict=True)]
        table["gops"] = sums(numbers.signed(gops - 1)) if gops else None
        if numbers.with_crc:
            table["crc"] = numbers.take(n)
        end = table["offset"][-1] + table["length"][-1]
    assert numbers.values == []
    return found


@pytest.fixture(params=["vla", "world", "live", "stateless", "big"])
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[bytes, Receipt, str]:
    """A file of each layout, and its receipt."""
    kind = request.param
    profile = profile_of("world", gop_frames=10, chunk_bytes=4 << 20) if kind in ("world", "big") else profile_of("vla")
    topics = [
        *specs(2, 0 if kind == "stateless" else 2),
        TopicSpec("/task", TopicKind.TEXT),
        TopicSpec("/never", TopicKind.DEPTH),
    ]
    if kind == "big":
        topics.append(TopicSpec("/noise", rate_hz=30, group="noise", encoder={"crf": "1", "preset": "ultrafast"}))
    path = tmp_path / "e.mcap"
    writer = EpisodeWriter(path, episode_id=EPISODE, profile=profile, topics=topics, live=kind == "live")
    fill(writer, cameras=2, states=0 if kind == "stateless" else 2, frames=75)
    writer.text("/task", stamp(3), "fold the towel")
    if kind == "big":
        rng = np.random.default_rng(0)
        for k in range(20):
            writer.frame("/noise", stamp(k), rng.integers(0, 256, (960, 1280, 3), dtype=np.uint8))
    writer.attach("robot.urdf", "application/xml", b"<robot/>")
    writer.describe("site", {"building": "7"})
    receipt = writer.close()
    return path.read_bytes(), receipt, kind


def test_the_file_is_as_the_page_says(written: tuple[bytes, Receipt, str]) -> None:
    data, _, kind = written
    assert data[:8] == data[-8:] == MAGIC
    assert data[-37] == 2  # the footer
    start, offsets, crc = struct.unpack("<QQI", data[-28:-8])
    assert crc == zlib.crc32(data[start:-12])
    body = list(records(data, 8, start))
    summary = list(records(data, start, len(data) - 37))
    ops = [op for op, _, _ in body]
    # order: header, schemas, channels, tg.layout; then chunks; own metadata; attachments, tg.index last; DataEnd
    assert ops[0] == 1
    assert text(body[0][2], 0)[0] == ""
    assert text(body[0][2], 4)[0].startswith("kinemill ")
    head = [op for op in ops if op in (1, 3, 4)]
    assert ops[: len(head) + 1] == [*sorted(head), 12]
    chunks_end = max((i for i, op in enumerate(ops) if op in (6, 7)), default=0)
    assert set(ops[len(head) + 1 : chunks_end + 1]) <= {6, 7, 0x80}
    assert ops[chunks_end + 1 :] == [12, 9, 9, 15]
    # DataEnd covers what is before it
    op, at, end = body[-1]
    assert struct.unpack("<I", end)[0] == zlib.crc32(data[:at]) != 0
    # the summary: one opcode after the other, in this order
    assert [op for i, (op, _, _) in enumerate(summary) if i == 0 or summary[i - 1][0] != op] == [
        3,
        4,
        11,
        13,
        10,
        8,
        14,
    ]
    assert next(at for op, at, _ in summary if op == 14) == offsets
    # channels count from 1, and name group and kind
    channels = [struct.unpack_from("<HH", b) for op, _, b in body if op == 4]
    assert [c for c, _ in channels] == list(range(1, len(channels) + 1))
    told = [strings(b, text(b, text(b, 4)[1])[1]) for op, _, b in body if op == 4]
    assert all({"tg.group", "tg.kind"} <= set(t) for t in told)
    # padding: zeros, in front of chunks of 4 MiB and more, which start on a MiB
    for i, (op, at, content) in enumerate(body):
        if op == 0x80:
            assert not any(content)
            assert body[i + 1][0] == 6
        if op == 6 and len(content) + 9 >= 4 << 20:
            assert at % (1 << 20) == 0
    assert (0x80 in ops) == (kind == "big")
    layout = strings(body[len(head)][2], text(body[len(head)][2], 0)[1])
    assert text(body[len(head)][2], 0)[0] == "tg.layout"
    expected = {"version", "episode_id", "profile", "live", "gop_frames", "cut.video", "cut.span_ns", "reorder_ns"}
    assert set(layout) == expected | {"encoder", "groups"}
    assert (layout["version"], layout["live"]) == ("1", "true" if kind == "live" else "false")
    assert json.loads(layout["groups"])["cameras"] == ["/cam/0", "/cam/1"]


def test_every_chunk_is_found_by_the_layout_and_is_what_it_says(written: tuple[bytes, Receipt, str]) -> None:
    data, receipt, kind = written
    # given the attachment tg.index, found by scanning the file
    (start,) = struct.unpack("<Q", data[-28:-20])
    body = list(records(data, 8, start))
    raw = [b for op, _, b in body if op == 9][-1]
    name, at = text(raw, 16)
    media_type, at = text(raw, at)
    (size,) = struct.unpack_from("<Q", raw, at)
    index = raw[at + 8 : at + 8 + size]
    assert (name, media_type) == ("tg.index", "application/x-kinemill-index")
    assert struct.unpack("<I", raw[-4:])[0] == zlib.crc32(raw[:-4])
    assert index[:4] == b"TGX1"
    (length,) = struct.unpack_from("<I", index, 4)
    told = json.loads(index[8 : 8 + length])
    assert set(told) == {"receipt", "groups", "topics"}
    groups = unpack(told["topics"], index[8 + length :])
    # then the manifest's two columns say the same
    plain = unpack(*Layout.from_receipt(receipt).columns())
    assert [{k: v for k, v in g.items() if k != "crc"} for g in groups] == plain
    # and each chunk lies where it says, with what it says, and nothing else is in the file
    chunks = {at: content for op, at, content in body if op == 6}
    names = {t["channel_id"]: t for g in json.loads(told["topics"])["groups"] for t in g["topics"]}
    seen = dict.fromkeys(names, 0)
    ends: list[tuple[int, int]] = []
    for group, table in zip(json.loads(told["topics"])["groups"], groups, strict=True):
        ids = [t["channel_id"] for t in group["topics"]]
        for k in range(table["n"]):
            content = chunks.pop(table["offset"][k])
            assert len(content) + 9 == table["length"][k]
            first, last, raw_size, crc = struct.unpack_from("<QQQI", content)
            compression, at = text(content, 28)
            unpacked = content[at + 8 :]
            if compression == "zstd":
                unpacked = zstandard.decompress(unpacked, max_output_size=raw_size)
            assert compression in ("", "zstd")
            assert (compression == "") or group["name"] not in ("cameras", "noise")
            assert (len(unpacked), zlib.crc32(unpacked)) == (raw_size, crc)
            assert (first, last, crc) == (table["t_first"][k], table["t_last"][k], table["crc"][k])
            counts = dict.fromkeys(ids, 0)
            times = []
            for op, _, message in records(unpacked, 0, raw_size):
                channel, sequence, log, publish = struct.unpack_from("<HIQQ", message)
                assert op == 5
                assert log == publish
                seen[channel] += 1
                assert sequence == seen[channel]  # counts from 1, in file order
                counts[channel] += 1
                times.append(log)
            assert (min(times), max(times)) == (first, last)
            assert times == sorted(times)
            assert list(counts.values()) == [c[k] for c in table["counts"]]
        if table["n"]:
            ends.append((table["offset"][0], table["offset"][-1] + table["length"][-1]))
    assert chunks == {}
    if kind != "live":  # groups are ranges, one behind the other
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(ends))
    assert told["receipt"]["missing"] == ["/never"]


def test_a_gop_decodes_from_its_idr_alone(written: tuple[bytes, Receipt, str]) -> None:
    import av

    data, receipt, kind = written
    if kind == "live":
        return  # cut wherever in a GOP
    table = unpack(*Layout.from_receipt(receipt).columns())[0]
    content = data[table["offset"][-1] + 9 :][: table["length"][-1] - 9]
    _, at = text(content, 28)
    decoder = av.VideoCodecContext.create("h264", "r")
    decoder.thread_count = 1
    shown = []
    for _, _, message in records(content[at + 8 :], 0, len(content) - at - 8):
        channel, _, log, _ = struct.unpack_from("<HIQQ", message)
        if channel == 1:
            packet = message[22:]
            packet = packet[packet.index(b"\0\0\0\1") : packet.rindex(b"\x22\x04h264")]
            shown += [(log, frame.to_ndarray(format="rgb24")) for frame in decoder.decode(av.Packet(packet))]
    assert shown
    for log, image in shown:
        k = round((log - stamp(0)) * 30 / 1e9)
        assert np.abs(image.astype(int) - picture(0, k)).mean() < 12
