"""The rules for video, checked NAL by NAL on streams that a real encoder wrote."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.episode.h264 import check_packet, first_slice_is_idr, nal_units
from kinemill.errors import CorruptError, UnsupportedError
from support.episode import encode, packets


def check(data: bytes) -> bool:
    return check_packet(data, where="topic /cam at 0 ns").idr


def test_what_the_writer_encodes_meets_the_rules() -> None:
    # given a camera as the writer encodes it
    stream = packets(0, 12)
    # then IDRs come each fifth frame, with their parameter sets before them, and nothing but P slices between
    for k, (_, data, idr) in enumerate(stream):
        kinds = [data[start] & 31 for start, _ in nal_units(data)]
        assert idr is (k % 5 == 0)
        assert [kind for kind in kinds if kind != 6] == ([7, 8, 5] if idr else [1])
        assert check(data) is idr
        assert first_slice_is_idr(data) is idr
    info = check_packet(stream[0][1], where="")
    assert info.sps is not None
    assert (info.sps.width, info.sps.height, info.sps.chroma_format, info.sps.bit_depth) == (64, 48, 1, 8)
    assert info.sps.frame_mbs_only


def test_slices_of_one_frame_are_one_frame() -> None:
    stream = encode(3, width=320, height=240, **{"slice-max-size": "300"})
    assert sum(data[start] & 31 == 5 for data in stream for start, _ in nal_units(data)) > 1
    assert [check(data) for data in stream] == [True, False, False]


@pytest.mark.parametrize(
    ("stream", "what"),
    [
        (lambda: encode(12, bframes="2", **{"b-adapt": "0"}), "B"),
        (lambda: encode(2, **{"repeat-headers": "0"}), "SPS"),
        (lambda: encode(2, pixel_format="yuv444p"), "4:2:0"),
        (lambda: encode(2, pixel_format="yuv420p10le"), "10-bit"),
        (lambda: encode(2, interlaced="1"), "interlaced"),
        (lambda: encode(2, annexb=False), "Annex B"),
        (lambda: [a + b for a, b in [encode(2)]], "more than one frame"),
        (lambda: [encode(1)[0][:30]], "no picture|ends too early"),
        (lambda: [base64.b64encode(encode(1)[0])], "Annex B"),
        (lambda: [b""], "empty"),
        (lambda: [b"\x00\x00\x00\x01\x09\xf0"], "no picture"),
    ],
    ids=["b_frames", "no_sps", "444", "10_bit", "interlaced", "avcc", "two_frames", "piece", "base64", "empty", "aud"],
)
def test_each_broken_rule_is_named(stream: object, what: str) -> None:
    units = stream()  # type: ignore[operator]  # a callable, typed loosely for the table
    with pytest.raises((UnsupportedError, CorruptError), match=rf"/cam at 0 ns.*({what})"):
        [check(data) for data in units]


def test_a_stream_cut_into_pieces_is_refused_at_each_piece_that_is_no_frame() -> None:
    # given a big frame of several slices, published in two messages
    frame = encode(1, width=320, height=240, **{"slice-max-size": "300"})[0]
    starts = [start for start, _ in nal_units(frame)]
    middle = starts[-2] - 3
    # then the second piece starts in the middle of a frame
    with pytest.raises(UnsupportedError, match="middle of a frame"):
        check(frame[middle:])


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_any_bytes_end_in_a_typed_error_or_an_answer(data: bytes) -> None:
    with contextlib.suppress(UnsupportedError, CorruptError):
        check(b"\0\0\0\1" + data)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_packets_never_crash_the_check(data: st.DataObject) -> None:
    raw = bytearray(packets(0, 12)[0][1])
    for _ in range(data.draw(st.integers(1, 5))):
        raw[data.draw(st.integers(0, min(60, len(raw) - 1)))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(UnsupportedError, CorruptError):
        check(bytes(raw))
