"""Frames and messages that come late, or by clocks that lag, stand still or go back: kept, in bounded memory."""

from __future__ import annotations

import io
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kinemill.contracts.episode import Receipt, TopicKind
from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, TopicSpec, Window, profile_of
from kinemill.episode.encode import CameraEncoder
from kinemill.episode.repack import repack
from kinemill.episode.scan import FileSource
from kinemill.episode.verify import verify
from kinemill.errors import LimitError, UnsupportedError
from support.episode import EPISODE, KEY, encode, packets, picture, stamp, stored

LATE = {"inside a GOP": 12, "an IDR": 20, "the last of a GOP": 24}
"""Frames that arrive four frames late: over the window of a camera, inside that of its group."""


def arrival(late: int, frames: int = 60) -> list[int]:
    order = [k for k in range(frames) if k != late]
    order.insert(late + 4, late)
    return order


def record(orders: dict[str, list[int]], *, live: bool = False, profile: str = "vla") -> tuple[bytes, Receipt]:
    sink = io.BytesIO()
    topics = [TopicSpec(topic, rate_hz=30) for topic in orders]
    writer = EpisodeWriter(sink, episode_id=EPISODE, topics=topics, live=live, profile=profile)
    for turn in zip(*orders.values(), strict=True):
        for topic, k in zip(orders, turn, strict=True):
            writer.frame(topic, stamp(k), picture(0, k))
    receipt = writer.close()
    return sink.getvalue(), receipt


def pictures(data: bytes, receipt: Receipt, topic: str, frames: range) -> list[np.ndarray]:
    """Of each frame, which has to be found under its time and to be the right one."""
    layout = Layout.from_columns(*Layout.from_receipt(receipt).columns())
    reader = EpisodeReader.open(stored(data), KEY, layout=layout)
    found = []
    for k in frames:
        t_ns, images, pad = reader.read([Window.at(topic, stamp(k))])[topic]
        assert (t_ns.tolist(), pad.tolist()) == ([stamp(k)], [False])
        near = range(max(0, k - 6), k + 7)
        errors = [np.abs(images[0].astype(int) - picture(0, j)).mean() for j in near]
        assert near[int(np.argmin(errors))] == k
        found.append(images[0])
    return found


class _Packet:
    """What FFmpeg gives, with other bytes."""

    def __init__(self, data: bytes, key: bool) -> None:
        self._data, self.is_keyframe = data, key

    def __bytes__(self) -> bytes:
        return self._data


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder that gives the same bytes for the same frames: x264's differ by a macroblock now and then."""
    known: dict[tuple[str, int, bool], bytes] = {}
    collect = CameraEncoder._collect

    def same(self: CameraEncoder, found: list[Any], sent: deque[tuple[int, int, bool]]) -> None:
        keys = [(self._spec.topic, sent[i][0], bool(p.is_keyframe)) for i, p in enumerate(found)]
        data = [known.setdefault(key, bytes(p)) for key, p in zip(keys, found, strict=True)]
        collect(self, [_Packet(d, key[2]) for d, key in zip(data, keys, strict=True)], sent)

    monkeypatch.setattr(CameraEncoder, "_collect", same)


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("profile", ["vla", "world"])
@pytest.mark.parametrize("late", list(LATE.values()), ids=list(LATE))
def test_a_late_frame_changes_no_other_frame_in_any_layout(late: int, profile: str, tmp_path: Path) -> None:
    # given the same recording converted and live: one camera in time, one with a late frame
    orders = {"/a": list(range(60)), "/b": arrival(late)}
    converted, receipt = record(orders, profile=profile)
    live, live_receipt = record(orders, profile=profile, live=True)
    assert receipt.groups[0].late_messages == live_receipt.groups[0].late_messages == 1
    # when both are read, then every frame is the same picture to the last bit
    near = range(late - 5, late + 12)
    expected = pictures(converted, receipt, "/b", near)
    for one, other in zip(expected, pictures(live, live_receipt, "/b", near), strict=True):
        np.testing.assert_array_equal(one, other)
    # and repack of either gives the very bytes that the convert writer wrote
    for name, data in (("live", live), ("converted", converted)):
        (tmp_path / f"{name}.mcap").write_bytes(data)
        report = repack(tmp_path / f"{name}.mcap", tmp_path / f"{name}-out.mcap")
        assert (tmp_path / f"{name}-out.mcap").read_bytes() == converted
        assert report.receipt == receipt


def test_a_late_frame_at_the_very_end_survives_a_repack(tmp_path: Path) -> None:
    converted, receipt = record({"/a": [*range(10), *range(11, 60), 10]})
    (tmp_path / "in.mcap").write_bytes(converted)
    assert repack(tmp_path / "in.mcap", tmp_path / "out.mcap").receipt == receipt
    assert (tmp_path / "out.mcap").read_bytes() == converted


@pytest.mark.parametrize("live", [False, True])
def test_a_camera_that_lags_a_second_behind_holds_no_memory_and_loses_no_frame(live: bool, tmp_path: Path) -> None:
    sink = io.BytesIO()
    writer = EpisodeWriter(
        sink, episode_id=EPISODE, topics=[TopicSpec("/a", rate_hz=30), TopicSpec("/b", rate_hz=30)], live=live
    )
    group = writer._groups["cameras"]
    held = 0
    for k in range(180):
        writer.frame("/a", stamp(k), picture(0, k))
        if k >= 30:
            writer.frame("/b", stamp(k - 30), picture(0, k - 30))
            encoder = group._encoders[1]  # type: ignore[union-attr]  # the group of the cameras
            held = max(held, len(encoder._stash) + len(encoder._held))
    receipt = writer.close()
    # then raw frames never piled up, and each frame is there under its own time
    assert held <= 16
    assert {t.topic: t.messages for t in receipt.groups[0].topics} == {"/a": 180, "/b": 150}
    pictures(sink.getvalue(), receipt, "/b", range(0, 150, 7))
    (tmp_path / "e.mcap").write_bytes(sink.getvalue())
    with FileSource(tmp_path / "e.mcap") as source:
        assert verify(source, deep=True).findings == []


@pytest.mark.parametrize("live", [False, True])
def test_a_clock_that_stands_still_ends_in_an_error_before_memory_is_full(live: bool) -> None:
    profile = profile_of("vla", max_chunk_bytes=20_000)
    writer = EpisodeWriter(
        io.BytesIO(), episode_id=EPISODE, topics=[TopicSpec("/a", rate_hz=30)], profile=profile, live=live
    )
    held = []

    def frames_of_one_stamp() -> None:
        for k in range(5000):
            writer.frame("/a", 0, picture(0, k % 60))
            held.append(len(writer._groups["cameras"]._encoders[0]._held))  # type: ignore[union-attr]  # of cameras

    with pytest.raises(LimitError, match=r"time stamps (advance|stand still)"):
        frames_of_one_stamp()
    assert len(held) < 5000
    assert max(held) <= 16
    writer.abort()


def test_a_clock_that_goes_back_for_good_keeps_every_frame(tmp_path: Path) -> None:
    # given a camera whose clock is set back by ten minutes
    sink = io.BytesIO()
    writer = EpisodeWriter(sink, episode_id=EPISODE, topics=[TopicSpec("/a", rate_hz=30)])
    for k in range(30):
        writer.frame("/a", stamp(k, t0=700_000_000_000), picture(0, k))
    for k in range(90):
        writer.frame("/a", stamp(k), picture(0, k))
    receipt = writer.close()
    assert receipt.groups[0].messages == 120
    assert receipt.groups[0].late_messages == 90
    pictures(sink.getvalue(), receipt, "/a", range(0, 90, 7))


def test_a_packet_that_depends_on_a_late_one_is_refused() -> None:
    writer = EpisodeWriter(io.BytesIO(), episode_id=EPISODE, topics=[TopicSpec("/cam/0", rate_hz=30)])
    stream = packets(0, 15)
    for t_ns, data, _ in stream[:10]:
        writer.packet("/cam/0", t_ns, data)
    # when an IDR steps back in time, and the next packet is predicted from it
    writer.packet("/cam/0", stream[2][0], stream[5][1])
    with pytest.raises(UnsupportedError, match="decode order"):
        writer.packet("/cam/0", stream[10][0], stream[11][1])
    writer.abort()


@pytest.mark.parametrize(("options", "what"), [({"tff": "1"}, "interlaced"), ({"repeat_headers": "0"}, "SPS")])
def test_encoder_options_that_break_the_rules_are_refused(options: dict[str, str], what: str, tmp_path: Path) -> None:
    writer = EpisodeWriter(
        tmp_path / "e.mcap", episode_id=EPISODE, topics=[TopicSpec("/a", rate_hz=30, encoder=options)]
    )
    with pytest.raises(UnsupportedError, match=what), writer:
        [writer.frame("/a", stamp(k), picture(0, k)) for k in range(30)]
    assert list(tmp_path.iterdir()) == []


def test_large_passed_through_gops_are_cut_in_live_mode_too() -> None:
    # given a live camera whose second is more than a quarter of the largest chunk
    profile = profile_of("vla", max_chunk_bytes=40_000)
    writer = EpisodeWriter(
        io.BytesIO(), episode_id=EPISODE, topics=[TopicSpec("/a", rate_hz=30)], profile=profile, live=True
    )
    for k, data in enumerate(encode(120, keyint="1", qp="10")):
        writer.packet("/a", stamp(k), data)
    receipt = writer.close()
    assert receipt.groups[0].messages == 120
    assert max(receipt.groups[0].chunks.length) < 40_000


# ---- other messages than frames


def test_many_large_messages_of_one_stamp_are_one_chunk_in_epoch_time_too(tmp_path: Path) -> None:
    # given four depth cameras of one clock; such a time has no exact float
    epoch = 1_700_000_000_000_000_101
    rng = np.random.default_rng(0)
    image = rng.integers(0, 65536, (720, 1280), dtype=np.uint16)
    path = tmp_path / "e.mcap"
    topics = [TopicSpec(f"/depth/{i}", TopicKind.DEPTH) for i in range(4)]
    with EpisodeWriter(path, episode_id=EPISODE, topics=topics) as writer:
        for k in range(3):
            for topic in topics:
                writer.frame(topic.topic, epoch + 33_333_333 * k, image)
    assert writer.receipt is not None
    assert writer.receipt.groups[0].chunks.messages == (4, 4, 4)
    with FileSource(path) as source:
        assert verify(source).findings == []


def test_the_reorder_window_holds_for_large_messages_too(tmp_path: Path) -> None:
    # given 60 MB a second, each second message 0.3 s late
    blob = np.random.default_rng(1).bytes(1_000_000)
    path = tmp_path / "e.mcap"
    with EpisodeWriter(
        path, episode_id=EPISODE, topics=[TopicSpec("/blob", TopicKind.OTHER, schema="Blob", encoding="raw")]
    ) as writer:
        for t_ns in sorted((stamp(k, 60.0) for k in range(150)), key=lambda t: t + t // 1000 % 2 * 300_000_000):
            writer.message("/blob", t_ns, blob)
    assert writer.receipt is not None
    group = writer.receipt.groups[0]
    assert (group.messages, group.late_messages) == (150, 0)
    chunks = group.chunks
    assert all(a <= b for a, b in zip(chunks.t_last_ns, chunks.t_first_ns[1:], strict=False))
    assert max(chunks.length) < 5_000_000
