"""Windows by time and by number against a plain search over all messages, short ways and long ones alike."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.episode import EpisodeReader, Layout, Window
from support.episode import KEY, small_episode, stored

TOPICS = ("/state/0", "/state/1")


@functools.cache
def reader(profile: str, told: bool) -> EpisodeReader:
    """Of an episode of some seconds, by its receipt's layout or by the file's own index."""
    data, receipt = small_episode(1, 2, 100, profile)
    layout = Layout.from_columns(*Layout.from_receipt(receipt).columns()) if told else None
    return EpisodeReader.open(stored(data), KEY, layout=layout)


@functools.cache
def times(profile: str, topic: str) -> np.ndarray:
    """All log times of a topic."""
    answer = reader(profile, True).read([Window.between(topic, 0, 1 << 62)])
    return np.asarray(answer[topic][0])


@pytest.mark.parametrize("told", [True, False], ids=["layout", "own_index"])
@pytest.mark.parametrize("profile", ["vla", "world"])
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_steps_are_the_messages_of_those_numbers(profile: str, told: bool, data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(TOPICS))
    all_times = times(profile, topic)
    total = len(all_times)
    first = data.draw(st.integers(-30, total + 30))
    count = data.draw(st.sampled_from([1, 2, 50, 300, total + 5]))
    stride = data.draw(st.sampled_from([1, 2, 7, 250]))
    # when
    found, _, pad = reader(profile, told).read([Window.steps(topic, first, count, stride=stride)])[topic]
    # then
    numbers = first + stride * np.arange(count)
    np.testing.assert_array_equal(found, all_times[numbers.clip(0, total - 1)])
    np.testing.assert_array_equal(pad, (numbers < 0) | (numbers >= total))


@pytest.mark.parametrize("told", [True, False], ids=["layout", "own_index"])
@pytest.mark.parametrize("profile", ["vla", "world"])
@given(st.data())
@settings(max_examples=100, deadline=None)
def test_times_are_answered_by_the_last_message_before_them(profile: str, told: bool, data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(TOPICS))
    all_times = times(profile, topic)
    start = data.draw(st.integers(int(all_times[0]), int(all_times[-1])))
    step = data.draw(st.sampled_from([1, 5_000_000, 400_000_000]))
    wanted = [min(start + k * step, int(all_times[-1])) for k in range(data.draw(st.sampled_from([1, 2, 50])))]
    wanted = data.draw(st.permutations(wanted)) if data.draw(st.booleans()) else wanted
    # when
    found, _, pad = reader(profile, told).read([Window.at(topic, wanted)])[topic]
    # then
    np.testing.assert_array_equal(found, all_times[np.searchsorted(all_times, wanted, "right") - 1])
    assert not pad.any()
