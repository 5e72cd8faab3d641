"""The layout's two columns: exact, small, and safe against hostile bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.episode.counts import Counts, expand_runs, run_lengths
from kinemill.episode.layout import GroupLayout, Layout
from kinemill.errors import CorruptError, LimitError
from support.episode import small_episode


def same(a: Layout, b: Layout) -> None:
    assert len(a.groups) == len(b.groups)
    for x, y in zip(a.groups, b.groups, strict=True):
        assert (x.name, x.topics, x.in_order, x.skew_ns) == (y.name, y.topics, y.in_order, y.skew_ns)
        for column in ("offset", "length", "t_first_ns", "t_last_ns", "counts", "gop_chunk"):
            left, right = getattr(x, column), getattr(y, column)
            assert (left is None) == (right is None), column
            if left is not None:
                np.testing.assert_array_equal(left, right, column)


@pytest.mark.parametrize(("profile", "live"), [("vla", False), ("world", False), ("vla", True), ("world", True)])
def test_columns_give_back_the_layout(profile: str, live: bool) -> None:
    # given an episode's receipt
    _, receipt = small_episode(2, 2, 40, profile, live)
    layout = Layout.from_receipt(receipt)
    # when it travels as manifest columns
    topics, packed = layout.columns()
    # then nothing is lost
    same(layout, Layout.from_columns(topics, packed))
    assert layout.t_first_ns == receipt.t_first_ns
    assert layout.t_last_ns == receipt.t_last_ns


@given(st.lists(st.tuples(st.integers(0, 1 << 50), st.integers(0, 1 << 40)), min_size=1, max_size=30))
def test_chunks_may_follow_each_other_in_any_order_of_time(spans: list[tuple[int, int]]) -> None:
    # given chunks whose first times go back, as late messages make them
    n = len(spans)
    first, duration = np.array(spans, np.int64).T
    length = np.arange(100, 100 + n)
    counts = np.ones((1, n), np.int64)
    offset = np.arange(n) * 31 + np.cumsum(length) - length
    topics = Layout.from_receipt(small_episode(0, 1, 1)[1]).groups[0].topics
    in_order = not np.any(first[1:] < (first + duration)[:-1])
    group = GroupLayout("state", topics, offset, length, first, first + duration, Counts.of(counts), in_order=in_order)
    # when, then
    layout = Layout((group,))
    same(layout, Layout.from_columns(*layout.columns()))


def test_topics_json_is_shared_by_episodes_of_one_robot() -> None:
    short = Layout.from_receipt(small_episode(2, 2, 20)[1])
    long = Layout.from_receipt(small_episode(2, 2, 60)[1])
    assert short.topics_json() == long.topics_json()
    assert short.pack() != long.pack()


def test_a_minute_at_gop_5_is_small() -> None:
    # given a layout like that of one minute: 360 chunks of cameras, 60 of state, lengths that vary by 5 %
    rng = np.random.default_rng(1)
    _, receipt = small_episode(2, 2, 30)
    base = Layout.from_receipt(receipt)
    groups = []
    for group, n, step, size in zip(base.groups, (360, 60), (1e9 / 6, 1e9), (70_000, 90_000), strict=True):
        length = rng.normal(size, size * 0.05, n).astype(np.int64)
        counts = np.full((2, n), 5 if n == 360 else 200)
        gap = 15 * 2 + 16 * counts.sum(axis=0)
        t_first = (np.arange(n) * step).astype(np.int64) + 5_000_000_000
        groups.append(
            type(group)(
                group.name,
                group.topics,
                np.cumsum(length + gap) - length,
                length,
                t_first,
                t_first + int(step * 0.8),
                Counts.of(counts),
            )
        )
    # when
    packed = Layout(tuple(groups)).pack()
    # then it is under a kilobyte: the random lengths alone carry 13 to 14 bits each, 725 bytes
    assert len(packed) < 1000


@given(st.lists(st.integers(0, 1000), max_size=50))
def test_run_lengths_round_trip(values: list[int]) -> None:
    assert expand_runs(run_lengths(values)).tolist() == values


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_damaged_columns_are_refused_or_stay_sane(data: st.DataObject) -> None:
    # given packed columns with bytes changed, cut or added
    topics, packed = Layout.from_receipt(small_episode(2, 2, 40)[1]).columns()
    raw = bytearray(packed)
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    # when / then: a typed error, or columns that can at least not lead outside a file
    try:
        layout = Layout.from_columns(topics, bytes(raw))
    except (CorruptError, LimitError):
        return
    for group in layout.groups:
        assert (group.length > 0).all()
        assert (group.offset >= 0).all()


@pytest.mark.parametrize("topics", ["", "{}", '{"v":2,"groups":[]}', '{"v":1,"groups":[{"name":"a"}]}', "[1]"])
def test_a_damaged_topic_table_is_refused(topics: str) -> None:
    _, packed = Layout.from_receipt(small_episode()[1]).columns()
    with pytest.raises(CorruptError):
        Layout.from_columns(topics, packed)


def test_a_receipt_without_the_newer_fields_still_loads() -> None:
    # given the JSON of a receipt as it was before runs, skew and fields
    import json

    from kinemill.contracts.episode import Receipt
    from kinemill.records import dumps, loads

    _, receipt = small_episode()
    plain = json.loads(dumps(receipt))
    for group in plain["groups"]:
        del group["skew_ns"], group["chunks"]["runs"]
        for topic in group["topics"]:
            del topic["fields"]
    # when / then: it loads, and its layout finds chunks, only without counts
    layout = Layout.from_receipt(loads(Receipt, json.dumps(plain)))
    assert [g.counts for g in layout.groups] == [None, None]
    assert len(layout.groups[0]) == len(receipt.groups[0].chunks)
    assert len(Layout.from_columns(*layout.columns()).groups[0]) == len(receipt.groups[0].chunks)


def test_a_bomb_is_refused() -> None:
    # given a megabyte-sized claim behind a few bytes
    import zlib

    small = zlib.compressobj(9, zlib.DEFLATED, -15)
    body = small.compress(bytes(40 << 20)) + small.flush()
    topics, _ = Layout.from_receipt(small_episode()[1]).columns()
    with pytest.raises(LimitError):
        Layout.from_columns(topics, bytes((1, 1)) + body)
