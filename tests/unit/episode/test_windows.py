"""Windows by time and by number against a plain search over all messages, in files of every kind of disorder.

Jitter, late messages, repeated stamps, topics that are seldom or never there, chunks of one message; written by us,
live or in order, or by the stock writer. The rate that a topic declares is a lie in most of them.
"""

from __future__ import annotations

import io
import random
from typing import Literal

import numpy as np
import pytest
from mcap.writer import CompressionType, IndexType, Writer

from kinemill.contracts.episode import TopicKind
from kinemill.episode import EpisodeReader, EpisodeWriter, Layout, TopicSpec, Window
from support.episode import EPISODE, KEY, NS, stored

TOPICS = ("/a", "/b", "/c", "/never")
STEP = 20_000_000
Messages = list[tuple[str, int]]


def recording(rng: random.Random) -> Messages:
    """(topic, time) in the order of arrival; a message's number is its payload."""
    kind = rng.choice(["even", "repeated", "jitter", "late", "reversed", "gap"])
    n = rng.choice([1, 3, 30, 200, 400])
    weights = rng.choice([(1, 1, 1), (100, 10, 1)])
    found = []
    t = rng.choice([0, 5 * NS])
    for i in range(n):
        t += rng.choice([0, 0, 2 * STEP]) if kind == "repeated" else 5 * NS if kind == "gap" and i == n // 2 else STEP
        t_ns = t
        if kind == "jitter":
            t_ns += rng.randrange(300_000_000)
        elif kind == "late" and rng.random() < 0.1:
            t_ns = max(0, t - rng.randrange(4 * NS))
        elif kind == "reversed":
            t_ns = 2 * n * STEP + 5 * NS - t
        found.append((rng.choices(TOPICS[:3], weights)[0], max(t_ns, 0)))
    return found


def stock(rng: random.Random, messages: Messages) -> EpisodeReader:
    out = io.BytesIO()
    writer = Writer(
        out,
        chunk_size=rng.choice([1, 200, 2000, 1 << 20]),
        compression=rng.choice(list(CompressionType)),
        index_types=rng.choice([IndexType.ALL, IndexType.CHUNK]),
        enable_crcs=rng.random() < 0.5,
    )
    writer.start()
    schema = writer.register_schema("T", "jsonschema", b"{}")
    channels = {topic: writer.register_channel(topic, "json", schema) for topic in TOPICS}
    for i, (topic, t_ns) in enumerate(messages):
        writer.add_message(channels[topic], t_ns, str(i).encode(), t_ns, i)
    writer.finish()
    return EpisodeReader.open(stored(out.getvalue()), KEY)


def ours(rng: random.Random, messages: Messages, *, live: bool, told: bool) -> EpisodeReader:
    out = io.BytesIO()
    topics = [
        TopicSpec(topic, TopicKind.OTHER, rate_hz=rng.choice([None, 20]), schema="T", encoding="json")
        for topic in TOPICS
    ]
    writer = EpisodeWriter(out, episode_id=EPISODE, topics=topics, live=live)
    for i, (topic, t_ns) in enumerate(messages):
        writer.message(topic, t_ns, str(i).encode())
    receipt = writer.close()
    layout = Layout.from_columns(*Layout.from_receipt(receipt).columns()) if told else None
    return EpisodeReader.open(stored(out.getvalue()), KEY, layout=layout)


def opened(kind: str, rng: random.Random, messages: Messages) -> EpisodeReader:
    if kind == "stock":
        return stock(rng, messages)
    return ours(rng, messages, live=kind == "live", told=kind != "own_index")


def moments(rng: random.Random, messages: Messages) -> list[int]:
    times = [t_ns for _, t_ns in messages]
    near = (0, 1, -1, STEP // 2, NS, -NS)
    return [max(0, rng.choice([min(times), max(times), rng.choice(times)]) + rng.choice(near)) for _ in range(5)]


def answer(times: np.ndarray, t: int, pick: str) -> int:
    """The time that is the answer; the first message's where none is old enough."""
    if pick == "nearest":
        return int(min(times.tolist(), key=lambda found: (abs(found - t), found)))
    before = times[times <= t]
    return int(before.max() if len(before) else times.min())


@pytest.mark.parametrize("kind", ["stock", "layout", "own_index", "live"])
@pytest.mark.parametrize("seed", range(40))
def test_windows_agree_with_a_plain_search(kind: str, seed: int) -> None:
    rng = random.Random(f"{kind} {seed}")
    messages = recording(rng)
    reader = opened(kind, rng, messages)
    of_topic = {topic: np.array([t for name, t in messages if name == topic], np.int64) for topic in TOPICS}
    payloads = {(topic, t_ns, str(i).encode()) for i, (topic, t_ns) in enumerate(messages)}
    for _ in range(8):
        # given some windows at once, by time
        picks: list[Literal["before", "nearest"]] = ["before", "nearest"]
        windows = [
            Window.at(
                rng.choice(TOPICS),
                rng.sample(moments(rng, messages), rng.choice([1, 1, 3])),
                pick=rng.choice(picks),
                tolerance_ns=rng.choice([None, 0, STEP, NS]),
                name=str(k),
            )
            for k in range(3)
        ]
        # when
        answers = reader.read(windows)
        # then
        for window in windows:
            times = of_topic[window.topic]
            found, data, pad = answers[window.key]
            if not len(times):
                assert pad.all()
                continue
            expected = [answer(times, t, window.pick) for t in window.times_ns]
            assert found.tolist() == expected, (window, expected)
            assert {(window.topic, t, d) for t, d in zip(found.tolist(), data, strict=True)} <= payloads
            if window.tolerance_ns is not None:
                ages = np.array(window.times_ns) - found
                early = (ages < 0) & (window.pick == "before")
                assert pad.tolist() == ((abs(ages) > window.tolerance_ns) | early).tolist()


@pytest.mark.parametrize("kind", ["stock", "layout", "own_index", "live"])
@pytest.mark.parametrize("seed", range(20))
def test_spans_hold_all_messages_and_no_other(kind: str, seed: int) -> None:
    rng = random.Random(f"span {kind} {seed}")
    messages = recording(rng)
    reader = opened(kind, rng, messages)
    for topic in TOPICS:
        start, end = sorted(rng.sample(moments(rng, messages), 2))
        t_ns, data, _ = reader.read([Window.between(topic, start, end)])[topic]
        expected = sorted(
            (t, str(i).encode()) for i, (name, t) in enumerate(messages) if name == topic and start <= t < end
        )
        assert sorted(zip(t_ns.tolist(), data, strict=False)) == expected
        assert t_ns.tolist() == sorted(t_ns.tolist())


def test_a_topic_that_is_seldom_there_is_found_far_back() -> None:
    """A latched message at the start of a stock file: hundreds of chunks lie between it and the time asked for."""
    out = io.BytesIO()
    writer = Writer(out, chunk_size=1)
    writer.start()
    schema = writer.register_schema("T", "jsonschema", b"{}")
    once, often = (writer.register_channel(topic, "json", schema) for topic in ("/once", "/often"))
    writer.add_message(once, 0, b"here", 0)
    for k in range(1, 500):
        writer.add_message(often, k, b"{}", k)
    writer.finish()
    reader = EpisodeReader.open(stored(out.getvalue()), KEY)
    for windows in ([Window.at("/once", 499)], [Window.at("/often", 250), Window.at("/once", 499)]):
        t_ns, data, pad = reader.read(windows)["/once"]
        assert (t_ns.tolist(), data, pad.tolist()) == ([0], [b"here"], [False])


def test_a_layout_whose_chunks_go_back_in_time_travels() -> None:
    """One late message: the chunk that it is put into starts before the chunk ahead of it."""
    out = io.BytesIO()
    writer = EpisodeWriter(out, episode_id=EPISODE, topics=[TopicSpec("/a", TopicKind.OTHER, schema="T", encoding="x")])
    for k in range(60):
        writer.message("/a", k * 100_000_000, b"x")
    writer.message("/a", 100_000_001, b"late")
    for k in range(60, 80):
        writer.message("/a", k * 100_000_000, b"x")
    receipt = writer.close()
    assert list(receipt.groups[0].chunks.t_first_ns) != sorted(receipt.groups[0].chunks.t_first_ns)
    for layout in (None, Layout.from_columns(*Layout.from_receipt(receipt).columns())):
        reader = EpisodeReader.open(stored(out.getvalue()), KEY, layout=layout)
        assert reader.read([Window.at("/a", 100_000_002)])["/a"][1] == [b"late"]


def test_many_chunks_that_each_claim_much_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk is inside its own bound; all of a read together have one too."""
    from kinemill.episode import reader as module
    from kinemill.errors import LimitError

    monkeypatch.setattr(module, "MAX_UNPACKED", 3 << 20)
    out = io.BytesIO()
    writer = Writer(out, chunk_size=1 << 20)
    writer.start()
    channel = writer.register_channel("/a", "json", writer.register_schema("T", "jsonschema", b"{}"))
    for k in range(8):
        writer.add_message(channel, k, bytes(1 << 20), k)
    writer.finish()
    reader = EpisodeReader.open(stored(out.getvalue()), KEY)
    assert len(reader.read([Window.between("/a", 0, 2)])["/a"][1]) == 2
    with pytest.raises(LimitError, match="unpack"):
        reader.read([Window.between("/a", 0, 100)])
