"""Write, carry the layout, read windows: the path that every sample takes."""

from __future__ import annotations

import io

import numpy as np
import pytest

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, TopicSpec, Window
from kinemill.errors import CorruptError, UsageError
from support.episode import EPISODE, KEY, picture, row, small_episode, specs, stamp, stored


def reader_of(data: bytes, receipt: object, **options: str) -> EpisodeReader:
    layout = Layout.from_receipt(receipt)  # type: ignore[arg-type]  # a receipt; typed loosely for the cache
    return EpisodeReader.open(stored(data), KEY, layout=Layout.from_columns(*layout.columns()), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("profile", ["vla", "world"])
@pytest.mark.parametrize("frame", [0, 4, 5, 33, 59])
def test_a_sample_is_one_ranged_read_a_group(profile: str, frame: int) -> None:
    # given
    data, receipt = small_episode(2, 2, 60, profile)
    reader = reader_of(data, receipt)
    t = stamp(frame)
    # when
    answer = reader.read(
        [Window.at("/cam/0", t), Window.at("/cam/1", t), Window.at("/state/0", t), Window.at("/state/1", t)]
    )
    # then: two requests, the right frame of each camera, the right row of each state
    assert [op for op, _ in reader.store.requests] == ["get_range", "get_range"]  # type: ignore[attr-defined]
    for camera in range(2):
        t_ns, pictures, pad = answer[f"/cam/{camera}"]
        assert t_ns.tolist() == [t]
        assert not pad.any()
        errors = [np.abs(pictures[0].astype(int) - picture(camera, k)).mean() for k in range(60)]
        assert int(np.argmin(errors)) == frame
    for i in range(2):
        t_ns, rows, pad = answer[f"/state/{i}"]
        assert t - 5_000_000 < t_ns[0] <= t
        np.testing.assert_array_equal(rows[0], row(i, int(t_ns[0])))


def test_windows_by_span_and_step() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = reader_of(data, receipt)
    answer = reader.read(
        [
            Window.between("/cam/0", stamp(10), stamp(20)),
            Window.steps("/cam/1", 57, 5),
            Window.steps("/state/0", 100, 4, stride=3),
            Window.between("/state/1", stamp(10), stamp(10)),
        ]
    )
    assert answer["/cam/0"][0].tolist() == [stamp(k) for k in range(10, 20)]
    assert answer["/cam/1"][0].tolist() == [stamp(57), stamp(58), stamp(59), stamp(59), stamp(59)]
    assert answer["/cam/1"][2].tolist() == [False, False, False, True, True]
    assert answer["/state/0"][0].tolist() == [stamp(0) + 5_000_000 * k for k in (100, 103, 106, 109)]
    assert answer["/state/1"][1].shape == (0, 7)


def test_padding_before_the_start_and_behind_the_end() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = reader_of(data, receipt)
    answer = reader.read(
        [
            Window.at("/cam/0", [stamp(-3), stamp(0), stamp(59), stamp(75)]),
            Window.at("/state/0", [stamp(2) + 3_000_000], tolerance_ns=1_000_000),
        ]
    )
    t_ns, pictures, pad = answer["/cam/0"]
    assert pad.tolist() == [True, False, False, True]
    assert t_ns.tolist() == [stamp(0), stamp(0), stamp(59), stamp(59)]
    np.testing.assert_array_equal(pictures[0], pictures[1])
    assert answer["/state/0"][2].tolist() == [True]


def test_a_missing_topic_is_padding_and_shifts_nothing() -> None:
    # given a declared topic that never came
    sink = io.BytesIO()
    topics = [*specs(1, 1), TopicSpec("/gone", TopicKind.STATE, names=("a", "b"))]
    writer = EpisodeWriter(sink, episode_id=EPISODE, topics=topics)
    for k in range(10):
        writer.frame("/cam/0", stamp(k), picture(0, k))
        writer.rows("/state/0", stamp(k), row(0, stamp(k)))
    receipt = writer.close()
    # when
    answer = reader_of(sink.getvalue(), receipt).read([Window.at("/gone", [stamp(3), stamp(4)])])
    # then
    assert receipt.missing == ("/gone",)
    assert answer["/gone"][1].shape == (2, 2)
    assert answer["/gone"][2].all()


def test_one_flipped_byte_rejects_the_gop_and_names_it() -> None:
    data, receipt = small_episode(2, 2, 60)
    group = receipt.groups[0]
    raw = bytearray(data)
    raw[group.chunks.offset[3] + 200] ^= 1
    reader = reader_of(bytes(raw), receipt)
    with pytest.raises(CorruptError, match=r"group cameras, chunk 3 .*crc"):
        reader.read([Window.at("/cam/0", stamp(16))])
    # and its neighbours are read as before
    assert not reader.read([Window.at("/cam/0", stamp(14))])["/cam/0"][2].any()


def test_without_a_layout_the_file_tells_where_all_lies() -> None:
    data, receipt = small_episode(2, 2, 60)
    reader = EpisodeReader.open(stored(data), KEY)
    assert set(reader.topics) == {"/cam/0", "/cam/1", "/state/0", "/state/1"}
    answer = reader.read([Window.at("/cam/0", stamp(33))])
    assert answer["/cam/0"][0].tolist() == [stamp(33)]
    assert reader.layout.columns() == Layout.from_receipt(receipt).columns()


def test_unknown_topics_are_named() -> None:
    data, receipt = small_episode()
    with pytest.raises(UsageError, match="did you mean /cam/0"):
        reader_of(data, receipt).read([Window.at("/cam/0x", 0)])
