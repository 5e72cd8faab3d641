"""How often a run was started again, in which way, and what that cost; counted from the attempts' own records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kinemill.contracts import METRICS, AttemptMeta

__all__ = ["Restarts", "count_restarts"]


@dataclass(frozen=True, slots=True)
class Restarts:
    """Of a run, from its first attempt on: a later attempt's numbers are never lower."""

    by_kind: dict[str, int]
    """`in_place` by torchrun, `requeue` by Slurm, `resubmit` by a person or another launcher."""
    lost_s: float
    """Seconds spent on steps that no checkpoint held, so that they were done again."""

    def show(self) -> None:
        """Show them in the default registry of this process's prometheus-client, beside the loaders' counters."""
        global _latest
        known, _latest = _latest is not None, self
        if not known:
            from prometheus_client import REGISTRY

            REGISTRY.register(_Shown())


_latest: Restarts | None = None


class _Shown:
    """What prometheus-client collects from."""

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily

        now = _latest or Restarts({}, 0.0)
        told = METRICS["kinemill_restart_attempts_total"]
        restarts = CounterMetricFamily(told.name.removesuffix("_total"), told.help, labels=told.labels)
        for kind, times in sorted(now.by_kind.items()):
            restarts.add_metric((kind,), times)
        yield restarts
        told = METRICS["kinemill_lost_step_seconds"]
        yield CounterMetricFamily(told.name, told.help, value=now.lost_s)

    def describe(self) -> list[Any]:
        """Nothing: without it, registering would collect."""
        return []


def count_restarts(attempts: Sequence[AttemptMeta]) -> Restarts:
    """Count a run's restarts. Pure.

    A step's time is its attempt's time over its steps, start-up included. An attempt that left no last step, or no end,
    lost an unknown amount and counts as none.

    Args:
        attempts: Described ones, in order; see `history`.
    """
    kinds: Counter[str] = Counter()
    lost_s = 0.0
    for before, after in pairwise(attempts):
        kinds[_kind(before, after)] += 1
        began, resumed = before.resume_step or 0, after.resume_step or 0
        if before.last_step is None or before.ended_at_ns is None or before.last_step <= max(began, resumed):
            continue
        step_s = (before.ended_at_ns - before.started_at_ns) / 1e9 / (before.last_step - began)
        lost_s += step_s * (before.last_step - resumed)
    return Restarts(dict(kinds), lost_s)


def _kind(before: AttemptMeta, after: AttemptMeta) -> str:
    if after.job_id != before.job_id:
        return "resubmit"
    if (after.slurm_restart_count or 0) != (before.slurm_restart_count or 0):
        return "requeue"
    on = (after.torchelastic_restart_count or 0) > (before.torchelastic_restart_count or 0)
    return "in_place" if on else "resubmit"
