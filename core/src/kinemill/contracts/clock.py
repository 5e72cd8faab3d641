"""Time behind a Protocol, so that policies are tested without waiting."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Clock"]


@runtime_checkable
class Clock(Protocol):
    """Wall time for records, monotonic time for intervals; never the one for the other."""

    def now_ns(self) -> int:
        """Wall time, ns since the epoch; may jump either way."""
        ...

    def monotonic_ns(self) -> int:
        """Never goes back; its zero means nothing."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait; a fake returns at once with both clocks moved on."""
        ...
