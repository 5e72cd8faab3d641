"""What a reader is asked for: messages of one topic, by time or by step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import index
from typing import Final, Literal, Self

from kinemill.errors import UsageError

__all__ = ["Window"]

_MAX_ITEMS: Final = 1 << 20
_FAR: Final = 1 << 62
_PICKS: Final = ("before", "nearest")


@dataclass(frozen=True, slots=True)
class Window:
    """Messages of one topic. Make one with `at`, `between` or `steps`."""

    topic: str
    times_ns: tuple[int, ...] = ()
    """One answer for each of these times."""
    span_ns: tuple[int, int] | None = None
    """All messages with start <= t < end."""
    step_range: tuple[int, int, int] | None = None
    """Messages by number in the topic: first, count, stride."""
    pick: Literal["before", "nearest"] = "before"
    tolerance_ns: int | None = None
    name: str = ""
    """Key of the answer; the topic where empty."""
    first_ns: int = field(default=0, init=False, repr=False, compare=False)
    """Earliest of the times."""
    last_ns: int = field(default=0, init=False, repr=False, compare=False)
    """Latest of the times."""

    def __post_init__(self) -> None:
        times = self.times_ns
        if (bool(times) + (self.span_ns is not None) + (self.step_range is not None)) != 1:
            raise UsageError(f"window on {self.topic}: exactly one of times, a span or steps")
        if self.pick not in _PICKS:
            raise UsageError(f"window on {self.topic}: pick {self.pick!r}; {' or '.join(_PICKS)}")
        if self.tolerance_ns is not None and self.tolerance_ns < 0:
            raise UsageError(f"window on {self.topic}: a tolerance of {self.tolerance_ns} ns")
        if len(times) > _MAX_ITEMS or (self.step_range and self.step_range[1] > _MAX_ITEMS):
            raise UsageError(f"window on {self.topic}: more than {_MAX_ITEMS} messages")
        low = high = 0
        if times:
            low, high = min(times), max(times)
            object.__setattr__(self, "first_ns", low)
            object.__setattr__(self, "last_ns", high)
        elif self.step_range is not None:
            low, count, stride = self.step_range
            if count < 1 or stride < 1:
                raise UsageError(f"window on {self.topic}: count {count} and stride {stride} have to be 1 or more")
            high = low + count * stride
        elif self.span_ns is not None and self.span_ns[1] < self.span_ns[0]:
            start, end = self.span_ns
            raise UsageError(f"window on {self.topic}: it ends ({end} ns) before it starts ({start} ns)")
        if low < -_FAR or high > _FAR:
            raise UsageError(f"window on {self.topic}: {low}..{high} goes beyond 2^62, as no recording does")

    @property
    def key(self) -> str:
        """Of the answer."""
        return self.name or self.topic

    @classmethod
    def at(
        cls,
        topic: str,
        times_ns: Sequence[int] | int,
        *,
        pick: Literal["before", "nearest"] = "before",
        tolerance_ns: int | None = None,
        name: str = "",
    ) -> Self:
        """For each time, the message at or before it (or the nearest one).

        Args:
            topic: Topic name.
            times_ns: Times on the episode's clock, any order.
            pick: `before` never looks into the future.
            tolerance_ns: Older (or farther) than this is padding. None: any age inside the
                recording, and one nominal period behind the group's last message.
            name: Key of the answer, where one topic has two windows.

        Raises:
            UsageError: Times that are no whole numbers: a float has no room for nanoseconds since 1970.
        """
        try:
            if type(times_ns) is int:  # the commonest, and quick
                times: tuple[int, ...] = (times_ns,)
            else:
                times = tuple(map(index, times_ns if isinstance(times_ns, Iterable) else (times_ns,)))
        except TypeError as exc:
            raise UsageError(f"window on {topic}: times are whole numbers of nanoseconds ({exc})") from exc
        return cls(topic, times_ns=times, pick=pick, tolerance_ns=tolerance_ns, name=name)

    @classmethod
    def between(cls, topic: str, start_ns: int, end_ns: int, *, name: str = "") -> Self:
        """All messages with start_ns <= t < end_ns; possibly none."""
        return cls(topic, span_ns=(index(start_ns), index(end_ns)), name=name)

    @classmethod
    def steps(cls, topic: str, first: int, count: int, *, stride: int = 1, name: str = "") -> Self:
        """`count` messages from number `first` (the topic's first is 0); those outside are padding."""
        return cls(topic, step_range=(index(first), index(count), index(stride)), name=name)
