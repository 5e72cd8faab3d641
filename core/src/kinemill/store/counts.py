"""How many requests this process sent to object stores, by operation and how each ended.

Counting needs nothing but the standard library. In a process that uses prometheus-client, its default registry shows
the counts as `kinemill_store_requests_total` from the next request on; each process has its own, forked workers too.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from kinemill.contracts import METRICS
from kinemill.errors import ConflictError, NotFoundError, TransientError

__all__ = ["Counting", "count", "requests_sent"]

NAME = "kinemill_store_requests_total"

_lock = threading.Lock()
_sent: Counter[tuple[str, str]] = Counter()
_shown = False


def requests_sent() -> Mapping[tuple[str, str], int]:
    """(operation, result) -> requests so far.

    Operations: get, head, list, put, delete. Results: `ok`; `not_found`; `conflict`, a condition that did not hold;
    `unavailable`, worth another try, which counts as a request of its own; `error`, anything else.
    """
    with _lock:
        return dict(_sent)


def _result(exc: BaseException | None) -> str:
    if exc is None:
        return "ok"
    if isinstance(exc, NotFoundError):
        return "not_found"
    if isinstance(exc, ConflictError):
        return "conflict"
    return "unavailable" if isinstance(exc, TransientError) else "error"


def count(op: str, exc: BaseException | None = None) -> None:
    """One request of `op`, which ended well, or with `exc`."""
    with _lock:
        _sent[op, _result(exc)] += 1
    if not _shown:
        _show()


class Counting:
    """A with-statement around one request.

    Args:
        op: The operation.
    """

    __slots__ = ("_op",)

    def __init__(self, op: str) -> None:
        self._op = op

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        count(self._op, exc)


class _Shown:
    """What prometheus-client collects from."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        told = METRICS[NAME]
        family = CounterMetricFamily(told.name.removesuffix("_total"), told.help, labels=told.labels)
        for labels, count in sorted(requests_sent().items()):
            family.add_metric(labels, count)
        yield family

    def describe(self) -> list[Any]:
        """Nothing yet: without it, registering would collect."""
        return []


def _show() -> None:
    """Register with prometheus-client where this process has loaded it; importing it ourselves would cost 0.1 s."""
    global _shown  # noqa: PLW0603 - the state of the process
    client = sys.modules.get("prometheus_client")
    registry = getattr(client, "REGISTRY", None)
    if registry is None:
        return
    with _lock:
        if _shown:
            return
        _shown = True
    registry.register(_Shown())


def _fresh_lock() -> None:
    """A lock that another thread held at the fork would stay held in the child."""
    global _lock  # noqa: PLW0603 - the state of the process
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_fresh_lock)
