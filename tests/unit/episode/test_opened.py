"""A fetched chunk: any damage ends in a typed error or in the data that was written."""

from __future__ import annotations

import struct
from collections import Counter

import lz4.frame
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.episode import wire
from kinemill.episode.checksum import crc32
from kinemill.episode.opened import open_chunk
from kinemill.episode.reader import EpisodeReader
from kinemill.episode.walk import _walk_records, _walk_rounds, walk
from kinemill.episode.window import Window
from kinemill.errors import CorruptError, DataError, LimitError, UnsupportedError
from support.episode import KEY, small_episode, stamp, stored


def message(channel: int, sequence: int, t_ns: int, payload: bytes) -> bytes:
    return wire.MESSAGE_HEAD.pack(5, 22 + len(payload), channel, sequence, t_ns, t_ns) + payload


def chunk(raw: bytes, compression: str = "", *, t: tuple[int, int] = (1, 3), size: int | None = None) -> bytes:
    data = {"": lambda: raw, "zstd": lambda: zstandard.compress(raw), "lz4": lambda: lz4.frame.compress(raw)}[
        compression
    ]()
    head = wire.chunk_record(
        *t,
        raw_size=len(raw) if size is None else size,
        crc=crc32(raw),
        compression=compression.encode(),
        data_size=len(data),
    )
    return head + data


def rounds(channels: tuple[int, ...], repeats: int, *, start: int = 7, jump: int = 0) -> bytes:
    """A pattern of channels again and again; after the 20th round `jump` messages of each are missing."""
    seen: Counter[int] = Counter()
    out = []
    for k in range(repeats * len(channels)):
        channel = channels[k % len(channels)]
        number = start + seen[channel] + jump * (k // len(channels) >= 20)
        seen[channel] += 1
        payload = bytes([k % 256]) * (3 + k % len(channels))
        out.append(message(channel, number % (1 << 32), 10 + k, payload))
    return b"".join(out)


RAW = message(1, 1, 1, b"a") + message(2, 1, 2, b"bb") + message(1, 2, 3, b"")


@pytest.mark.parametrize("compression", ["", "zstd", "lz4"])
def test_messages_are_found(compression: str) -> None:
    found = open_chunk(chunk(RAW, compression), where="here")
    assert found.channel.tolist() == [1, 2, 1]
    assert found.sequence.tolist() == [1, 1, 2]
    assert found.time.tolist() == [1, 2, 3]
    assert [bytes(found.data[o + 31 : e]) for o, e in zip(found.offset, found.end, strict=True)] == [b"a", b"bb", b""]


@pytest.mark.parametrize("channels", [(1,), (1, 2), (1, 2, 3), (1, 2, 2), (3, 1, 2, 1, 1)], ids=str)
@pytest.mark.parametrize("repeats", [30, 17_000])
def test_a_repeating_pattern_gives_the_same_as_record_by_record(channels: tuple[int, ...], repeats: int) -> None:
    raw = rounds(channels, repeats)
    fast, slow = _walk_rounds(memoryview(raw)), _walk_records(memoryview(raw), "here")
    assert fast is not None
    assert (fast.lanes, fast.in_order, fast.span_ns) == (slow.lanes, slow.in_order, slow.span_ns)
    for name in ("offset", "end", "channel", "sequence", "time"):
        np.testing.assert_array_equal(getattr(fast, name), getattr(slow, name))
    for index in (0, 1, len(channels), len(fast.time) - 1):
        assert fast.place(index) == slow.place(index) == (fast.offset[index], fast.end[index])
    assert fast.counts_from() == (tuple(slow.counts_from() or ()) or None)
    for channel in (1, 2, 9):
        np.testing.assert_array_equal(fast.time[fast.of(channel)], slow.time[slow.of(channel)])


@pytest.mark.parametrize(("start", "jump"), [(7, 1), ((1 << 32) - 9, 0)], ids=["missing", "overflow"])
def test_numbers_that_do_not_count_up_are_read_record_by_record(start: int, jump: int) -> None:
    raw = rounds((1, 2), 30, start=start, jump=jump)
    assert _walk_rounds(memoryview(raw)) is None
    found = walk(memoryview(raw), where="here")
    assert found.rounds is None
    assert found.counts_from() is None
    assert found.sequence[found.of(2)].tolist() == [(start + k + jump * (k >= 20)) % (1 << 32) for k in range(30)]


@pytest.mark.parametrize(
    ("data", "error", "what"),
    [
        (chunk(RAW, "zstd", size=1 << 31), LimitError, "unpack"),
        (chunk(bytes(50 << 20), "zstd", size=100), CorruptError, "declared"),
        (chunk(bytes(50 << 20), "lz4", size=100), CorruptError, "declared|unpacks"),
        (chunk(RAW)[:-1], CorruptError, "no Chunk record"),
        (chunk(RAW + b"\x05"), CorruptError, "behind the last record"),
        (chunk(RAW + struct.pack("<BQ", 5, 1 << 60)), CorruptError, "are left"),
        (chunk(struct.pack("<BQ", 5, 3) + b"abc"), CorruptError, "message record"),
        (chunk(struct.pack("<BQ", 9, 3) + b"abc"), CorruptError, "type 0x9"),
        (chunk(RAW, t=(0, 3)), CorruptError, "outside"),
        (chunk(RAW).replace(b"bb", b"bc"), CorruptError, "crc"),
        (chunk(message(1, 1, 1 << 63, b""), t=(1 << 63, 1 << 63)), CorruptError, "2.63|outside"),
    ],
    ids=["limit", "zstd_bomb", "lz4_bomb", "cut", "tail", "absurd", "short", "wrong", "times", "crc", "time"],
)
def test_damage_is_named(data: bytes, error: type[DataError], what: str) -> None:
    with pytest.raises(error, match=what):
        open_chunk(data, where="here")


def test_an_unknown_compression_is_named() -> None:
    head = wire.chunk_record(1, 3, raw_size=3, crc=0, compression=b"brotli", data_size=3)
    with pytest.raises(UnsupportedError, match="brotli"):
        open_chunk(head + b"abc", where="here")


@pytest.mark.parametrize("told", [True, False], ids=["layout", "own_index"])
@given(st.data())
@settings(max_examples=150, deadline=None)
def test_flips_cuts_reorders_and_splices_never_give_wrong_data(told: bool, data: st.DataObject) -> None:
    """Any change of the file ends in a typed error, or in exactly what was written, whoever tells where things lie."""
    # given a file, and the right answer
    original, receipt = small_episode(2, 2, 30)
    windows = [Window.at("/cam/1", stamp(data.draw(st.integers(0, 29)))), Window.at("/state/0", stamp(17))]
    from kinemill.episode.layout import Layout

    layout = Layout.from_columns(*Layout.from_receipt(receipt).columns())
    right = EpisodeReader.open(stored(original), KEY, layout=layout).read(windows)
    # when bytes are changed
    raw = bytearray(original)
    kind = data.draw(st.sampled_from(["flip", "cut", "swap", "splice", "zero"]))
    a, b = sorted(data.draw(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, len(raw) - 1))))
    n = data.draw(st.integers(1, 3000))
    if kind == "flip":
        raw[a] ^= data.draw(st.integers(1, 255))
    elif kind == "cut":
        raw = raw[:a]
    elif kind == "swap":
        chunks = receipt.groups[data.draw(st.integers(0, 1))].chunks
        i, j = data.draw(st.tuples(st.integers(0, len(chunks) - 1), st.integers(0, len(chunks) - 1)))
        one = original[chunks.offset[i] : chunks.offset[i] + chunks.length[i]]
        raw[chunks.offset[j] : chunks.offset[j] + len(one)] = one
    elif kind == "splice":
        raw[b : b + n] = raw[a : a + n]
    else:
        raw[a : a + n] = bytes(len(raw[a : a + n]))
    # then
    try:
        found = EpisodeReader.open(stored(bytes(raw)), KEY, layout=layout if told else None).read(windows)
    except DataError:
        return
    for key, (t_ns, content, pad) in right.items():
        np.testing.assert_array_equal(found[key][0], t_ns)
        np.testing.assert_array_equal(found[key][1], content)
        np.testing.assert_array_equal(found[key][2], pad)
