"""Retries are bounded in number and time, and spread."""

from __future__ import annotations

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.errors import NotFoundError, UnavailableError
from kinemill.store.retry import Retry


def failing(times: int) -> object:
    """A body that fails `times` times and then answers its attempt's number."""
    calls = []

    def body(attempt: int) -> int:
        calls.append(attempt)
        if len(calls) <= times:
            raise UnavailableError("busy")
        return attempt

    return body


def test_it_tries_again_and_says_when_it_gives_up() -> None:
    waits: list[float] = []
    assert Retry(attempts=4).call("get k", failing(3), sleep=waits.append) == 4  # type: ignore[arg-type]
    assert len(waits) == 3
    with pytest.raises(UnavailableError, match=r"get k: gave up after 4 attempts .*busy"):
        Retry(attempts=4).call("get k", failing(4), sleep=waits.append)  # type: ignore[arg-type]


def test_only_what_may_pass_is_tried_again() -> None:
    def missing(attempt: int) -> int:
        raise NotFoundError(f"attempt {attempt}")

    with pytest.raises(NotFoundError, match="attempt 1"):
        Retry().call("get", missing, sleep=lambda _: None)


def test_time_is_bounded_too() -> None:
    with pytest.raises(UnavailableError, match="gave up after 1 attempts"):
        Retry(attempts=100, deadline_s=0).call("get", failing(5), sleep=lambda _: None)  # type: ignore[arg-type]


def test_the_defaults_outlast_half_a_minute_of_instant_refusals() -> None:
    random.seed(6)
    for _ in range(50):
        waits: list[float] = []
        with pytest.raises(UnavailableError):
            Retry().call("get", failing(1000), sleep=waits.append)  # type: ignore[arg-type]
        assert sum(waits) > 35


@given(st.integers(1, 60))
def test_waits_grow_to_a_cap_and_are_spread(attempt: int) -> None:
    policy = Retry(base_s=0.1, cap_s=5)
    waits = [policy.wait_s(attempt) for _ in range(20)]
    assert all(0 <= wait <= min(5, 0.1 * 2**attempt) for wait in waits)
    assert len(set(waits)) > 1


def test_event_loops_do_the_same() -> None:
    left = [2]

    async def body(attempt: int) -> int:
        if left[0]:
            left[0] -= 1
            raise UnavailableError("busy")
        return attempt

    assert asyncio.run(Retry(base_s=0).call_async("get", body)) == 3
    left[0] = 9
    with pytest.raises(UnavailableError, match="gave up after 2"):
        asyncio.run(Retry(attempts=2, base_s=0).call_async("get", body))
