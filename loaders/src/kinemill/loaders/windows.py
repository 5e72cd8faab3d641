"""What a sample holds: per topic, which messages around the anchor, by steps or by seconds.

::

    windows = {
        "observation.images.front": steps(0),                 # the frame at the anchor
        "observation.state": seconds(-0.5, 0.0),              # two moments
        "action": steps(range(50)),                           # the next 50 messages, whatever their rate
    }

Steps count a topic's own messages from the last one at or before the anchor, so they need no rate
and survive jitter. Seconds ask for the message nearest to a moment and accept it within a
tolerance, in integer nanoseconds. What lies outside the episode is the edge's value, marked as
padding; what lies outside the tolerance is marked as padding too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TypeAlias

from kinemill.errors import UsageError

__all__ = ["NS", "Window", "WindowLike", "from_delta_timestamps", "parse_windows", "seconds", "steps"]

NS = 1_000_000_000
MAX_LENGTH = 100_000


@dataclass(frozen=True, slots=True)
class Window:
    """Moments around an anchor.

    Attributes:
        steps: Message numbers relative to the one at or before the anchor; None for a window in time.
        offsets_ns: Moments relative to the anchor; None for a window in steps.
        tolerance_ns: How far the nearest message may lie from its moment; None: half the topic's nominal
            period, or 20 ms where it has no rate.
    """

    steps: tuple[int, ...] | None = None
    offsets_ns: tuple[int, ...] | None = None
    tolerance_ns: int | None = None

    def __post_init__(self) -> None:
        """Refuse a window that asks for nothing."""
        if (self.steps is None) == (self.offsets_ns is None):
            raise UsageError("a window is in steps or in time, one of the two")
        if not 1 <= len(self) <= MAX_LENGTH:
            raise UsageError(f"a window of {len(self)} moments: between 1 and {MAX_LENGTH}")
        if self.tolerance_ns is not None and self.tolerance_ns < 0:
            raise UsageError(f"tolerance {self.tolerance_ns} ns: not negative")

    def __len__(self) -> int:
        return len(self.steps if self.steps is not None else self.offsets_ns or ())


WindowLike: TypeAlias = Window | range | int | Sequence[int] | Sequence[float]


def steps(*which: int | Iterable[int]) -> Window:
    """A window in steps: `steps(0)`, `steps(-1, 0)`, `steps(range(50))`."""
    found: list[int] = []
    for one in which:
        found += [int(one)] if isinstance(one, Integral) else [int(i) for i in one]  # type: ignore[union-attr]  # an int has gone the other way
    return Window(steps=tuple(found))


def seconds(*moments: float | Iterable[float], tolerance_s: float | None = None) -> Window:
    """A window in time: `seconds(-0.1, 0.0)`, `seconds([i / 30 for i in range(50)])`."""
    found: list[float] = []
    for one in moments:
        found += [float(one)] if isinstance(one, Real) else [float(x) for x in one]  # type: ignore[union-attr]  # a number has gone the other way
    return Window(
        offsets_ns=tuple(round(x * NS) for x in found),
        tolerance_ns=None if tolerance_s is None else round(tolerance_s * NS),
    )


def from_delta_timestamps(
    deltas: Mapping[str, Sequence[float]], *, tolerance_s: float | None = None
) -> dict[str, Window]:
    """LeRobot's `delta_timestamps`, as they are: key -> seconds relative to the sample's frame."""
    return {key: seconds(list(moments), tolerance_s=tolerance_s) for key, moments in deltas.items()}


def parse_windows(windows: Mapping[str, WindowLike], *, tolerance_s: float | None = None) -> dict[str, Window]:
    """What a user wrote, as windows: integers are steps, floats are seconds.

    Args:
        windows: By key.
        tolerance_s: For those in seconds that say none.

    Raises:
        UsageError: Nothing asked for, or a value that is neither.
    """
    if not windows:
        raise UsageError("no windows: name at least one topic, such as {'action': steps(range(50))}")
    found: dict[str, Window] = {}
    for topic, like in windows.items():
        if isinstance(like, Window):
            found[topic] = like
        elif isinstance(like, int):
            found[topic] = steps(like)
        elif isinstance(like, range) or all(isinstance(x, Integral) for x in like):
            found[topic] = steps([int(x) for x in like])
        elif all(isinstance(x, Real) for x in like):
            found[topic] = seconds([float(x) for x in like], tolerance_s=tolerance_s)
        else:
            raise UsageError(f"window of '{topic}': {like!r} is neither steps (integers) nor seconds (floats)")
    return found
