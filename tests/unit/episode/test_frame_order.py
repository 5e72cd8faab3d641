"""Holes in a camera's packets, as its own counting of frames tells them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.episode.frame_order import FrameOrder
from kinemill.episode.h264 import check_packet
from kinemill.errors import DataError
from support.episode import encode, packets


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ref": "4"},
        {"slices": "4"},
        {"keyint": "500"},  # over the turn of the count
        {"bframes": "2", "b-pyramid": "normal"},
        {"intra-refresh": "1", "keyint": "20"},
    ],
    ids=str,
)
def test_a_whole_stream_has_no_hole(options: dict[str, str]) -> None:
    order = FrameOrder()
    assert [order.missing(unit) for unit in encode(300, **options)] == [0] * 300


@given(st.sets(st.integers(1, 59), max_size=6))
@settings(max_examples=60, deadline=None)
def test_each_hole_is_told_where_it_is(lost: set[int]) -> None:
    # given a stream with an IDR every five frames, of which some frames are lost
    order = FrameOrder()
    told = {k: n for k, (_, unit, _) in enumerate(packets(0, 60)) if k not in lost and (n := order.missing(unit))}
    # then the next frame of the same GOP tells how many; an IDR needs none before it
    expected = {}
    for k in set(range(60)) - lost:
        before = 0
        while k % 5 > before and k - before - 1 in lost:
            before += 1
        # where the GOP's IDR is lost too, the count goes on from the GOP before, and something is missing in any case
        if before and (k - before) % 5:
            expected[k] = before
        elif before:
            expected[k] = told.get(k, 0)
    assert told == {k: n for k, n in expected.items() if n}


def test_after_a_known_hole_nothing_is_expected() -> None:
    order = FrameOrder()
    units = [unit for _, unit, _ in packets(0, 10)]
    assert [order.missing(u) for u in units[:2]] == [0, 0]
    order.reset()
    assert [order.missing(u) for u in units[4:]] == [0] * 6


@given(st.binary(max_size=200))
@settings(max_examples=200, deadline=None)
def test_what_the_check_has_passed_never_crashes(data: bytes) -> None:
    unit = packets(0, 5)[0][1][:40] + data
    order = FrameOrder()
    try:
        check_packet(unit, where="here")
        order.missing(unit)
    except DataError:
        return
