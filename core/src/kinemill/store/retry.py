"""One retry policy for every store: bounded in number and time, with full jitter."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from kinemill.errors import TransientError, UnavailableError

__all__ = ["Retry"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how long.

    The defaults outlast an object store that is gone for half a minute: where a request is refused at once, the waits
    alone come to 75 s on average, and the deadline ends them. A wait is uniform in [0, base_s * 2**n], capped, so that
    a thousand clients do not come back in step.
    """

    attempts: int = 24
    base_s: float = 0.1
    cap_s: float = 8.0
    deadline_s: float = 90.0

    def wait_s(self, attempt: int) -> float:
        """Before attempt number `attempt` (the first retry is 1)."""
        return random.uniform(0.0, min(self.cap_s, self.base_s * 2**attempt))  # noqa: S311 - jitter, no secret

    def _give_up(self, what: str, attempt: int, start: float, exc: TransientError) -> UnavailableError | None:
        spent = time.monotonic() - start
        if attempt < self.attempts and spent < self.deadline_s:
            return None
        return UnavailableError(f"{what}: gave up after {attempt} attempts in {spent:.1f} s: {exc}")

    def call(self, what: str, body: Callable[[int], T], *, sleep: Callable[[float], None] = time.sleep) -> T:
        """`body(attempt)` until it raises no TransientError; `attempt` counts from 1.

        Raises:
            UnavailableError: The last attempt failed too.
        """
        start = time.monotonic()
        attempt = 1
        while True:
            try:
                return body(attempt)
            except TransientError as exc:
                if (final := self._give_up(what, attempt, start, exc)) is not None:
                    raise final from exc
            sleep(self.wait_s(attempt))
            attempt += 1

    async def call_async(self, what: str, body: Callable[[int], Awaitable[T]]) -> T:
        """`call` for event loops."""
        start = time.monotonic()
        attempt = 1
        while True:
            try:
                return await body(attempt)
            except TransientError as exc:
                if (final := self._give_up(what, attempt, start, exc)) is not None:
                    raise final from exc
            await asyncio.sleep(self.wait_s(attempt))
            attempt += 1
