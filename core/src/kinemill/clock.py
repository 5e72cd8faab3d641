"""The real clock and the one that tests turn by hand."""

from __future__ import annotations

import time

__all__ = ["FakeClock", "SystemClock"]


class SystemClock:
    """`kinemill.contracts.Clock` on the machine's own time."""

    def now_ns(self) -> int:
        """Wall time, ns since the epoch."""
        return time.time_ns()

    def monotonic_ns(self) -> int:
        """Monotonic time, ns."""
        return time.monotonic_ns()

    def sleep(self, seconds: float) -> None:
        """Wait `seconds`; less than nothing is nothing."""
        time.sleep(max(0.0, seconds))


class FakeClock:
    """`kinemill.contracts.Clock` that moves only when told."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic_ns = 0

    def now_ns(self) -> int:
        """Wall time as set."""
        return self._now_ns

    def monotonic_ns(self) -> int:
        """Time passed by `sleep` and `advance`."""
        return self._monotonic_ns

    def sleep(self, seconds: float) -> None:
        """`advance`, without waiting."""
        self.advance(max(0.0, seconds))

    def advance(self, seconds: float) -> None:
        """Move both clocks on by `seconds`.

        Raises:
            ValueError: A negative step; a clock that jumps back is `jump`.
        """
        if seconds < 0:
            raise ValueError("monotonic time cannot go back; use jump() for the wall clock")
        step_ns = round(seconds * 1e9)
        self._now_ns += step_ns
        self._monotonic_ns += step_ns

    def jump(self, seconds: float) -> None:
        """Step the wall clock only, as an administrator or NTP would."""
        self._now_ns += round(seconds * 1e9)
