"""What a reader is asked for: messages of one topic, by time or by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from kinemill.errors import UsageError

__all__ = ["Window"]

_MAX_ITEMS = 1 << 20


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

    def __post_init__(self) -> None:
        if (bool(self.times_ns) + (self.span_ns is not None) + (self.step_range is not None)) != 1:
            raise UsageError(f"window on {self.topic}: exactly one of times, a span or steps")
        if self.tolerance_ns is not None and self.tolerance_ns < 0:
            raise UsageError(f"window on {self.topic}: a tolerance of {self.tolerance_ns} ns")
        if len(self.times_ns) > _MAX_ITEMS or (self.step_range and self.step_range[1] > _MAX_ITEMS):
            raise UsageError(f"window on {self.topic}: more than {_MAX_ITEMS} messages")

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
        """
        times = (int(times_ns),) if isinstance(times_ns, int) else tuple(map(int, times_ns))
        return cls(topic, times_ns=times, pick=pick, tolerance_ns=tolerance_ns, name=name)

    @classmethod
    def between(cls, topic: str, start_ns: int, end_ns: int, *, name: str = "") -> Self:
        """All messages with start_ns <= t < end_ns; possibly none."""
        if end_ns < start_ns:
            raise UsageError(f"window on {topic}: it ends ({end_ns} ns) before it starts ({start_ns} ns)")
        return cls(topic, span_ns=(int(start_ns), int(end_ns)), name=name)

    @classmethod
    def steps(cls, topic: str, first: int, count: int, *, stride: int = 1, name: str = "") -> Self:
        """`count` messages from number `first` (the topic's first is 0); those outside are padding."""
        if count < 1 or stride < 1:
            raise UsageError(f"window on {topic}: count {count} and stride {stride} have to be 1 or more")
        return cls(topic, step_range=(int(first), int(count), int(stride)), name=name)
