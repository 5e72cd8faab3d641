"""What a window may ask for: whole nanoseconds, in any kind of integer, and nothing that no recording has."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from kinemill.episode import EpisodeReader, Window
from kinemill.errors import UsageError
from support.episode import KEY, small_episode, stamp, stored


@pytest.mark.parametrize("times", [3, np.int64(3), [3], (3,), np.array([3]), range(3, 4), np.array([3], np.uint32)])
def test_times_come_in_any_kind_of_integer(times: object) -> None:
    window = Window.at("/a", times)  # type: ignore[arg-type]  # NumPy's integers are what people have
    assert window.times_ns == (3,)
    assert type(window.times_ns[0]) is int


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: Window.at("/a", 1.5), "whole numbers"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: Window.at("/a", [1e18]), "whole numbers"),  # type: ignore[list-item]  # wrong on purpose
        (lambda: Window.at("/a", np.array([1e18])), "whole numbers"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: Window.at("/a", []), "exactly one of"),
        (lambda: Window("/a"), "exactly one of"),
        (lambda: Window("/a", times_ns=(1,), span_ns=(1, 2)), "exactly one of"),
        (lambda: Window.at("/a", 1, pick="after"), "before or nearest"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: Window.at("/a", 1, tolerance_ns=-1), "a tolerance of -1"),
        (lambda: Window.at("/a", [0, 1 << 70]), "beyond"),
        (lambda: Window.at("/a", -(1 << 70)), "beyond"),
        (lambda: Window.between("/a", 5, 4), "before it starts"),
        (lambda: Window("/a", span_ns=(5, 4)), "before it starts"),
        (lambda: Window.steps("/a", 0, 0), "1 or more"),
        (lambda: Window.steps("/a", 0, 1, stride=0), "1 or more"),
        (lambda: Window.steps("/a", 0, 3, stride=1 << 62), "beyond"),
        (lambda: Window.steps("/a", 1 << 70, 1), "beyond"),
        (lambda: Window.steps("/a", 0, 1 << 21), "more than"),
    ],
)
def test_what_cannot_be_asked_for_is_said(make: Callable[[], Window], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        make()


def test_a_span_may_reach_to_the_end_of_all_time() -> None:
    data, receipt = small_episode(1, 1, 30)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    for window in (Window.between("/cam/0", -(1 << 70), 1 << 70), Window.between("/state/0", 0, (1 << 63) - 1)):
        t_ns, _, pad = reader.read([window])[window.topic]
        assert int(t_ns[0]) == stamp(0)
        assert len(t_ns) in (30, 200)
        assert not pad.any()


def test_the_farthest_times_are_padding() -> None:
    data, receipt = small_episode(1, 1, 30)
    reader = EpisodeReader.open(stored(data), KEY, layout=receipt)
    far = 1 << 62
    for topic in ("/cam/0", "/state/0"):
        for pick in ("before", "nearest"):
            answer = reader.read([Window.at(topic, [-far, far], pick=pick)])[topic]  # type: ignore[arg-type]  # both
            assert answer[2].tolist() == [True, True]
        assert reader.read([Window.steps(topic, -far, 2)])[topic][2].tolist() == [True, True]
