"""Counters of the reading side for Prometheus; names and labels are the contract's."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from kinemill.contracts import METRICS

__all__ = ["count_batch", "count_seconds"]


@functools.cache
def _counter(name: str) -> Any:
    """Made on first use: prometheus-client costs 0.1 s to import."""
    from prometheus_client import Counter

    told = METRICS[name]
    return Counter(told.name.removesuffix("_total"), told.help, told.labels)


def count_batch(dataset: str, good: int, reasons: Sequence[str]) -> None:
    """A batch was delivered.

    Args:
        dataset: Label.
        good: Whole samples.
        reasons: One for each masked sample.
    """
    _counter("kinemill_loader_samples_total").labels(dataset).inc(good)
    for reason in reasons:
        _counter("kinemill_loader_masked_total").labels(dataset, reason).inc()


def count_seconds(phases: dict[str, float]) -> None:
    """Seconds spent since the last call, by phase: fetch (waiting for bytes), verify, decode, collate.

    Checking is part of decode in a job; `kinemill load bench` measures it apart.
    """
    for phase, spent in phases.items():
        _counter("kinemill_loader_seconds").labels(phase).inc(spent)
