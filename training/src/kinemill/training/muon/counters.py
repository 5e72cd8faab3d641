"""What the optimizer spent: bytes by group kind, time by phase, how even the load was."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

__all__ = ["Counters", "Stopwatch"]


class Stopwatch:
    """Adds up the time of a phase: wall time on a CPU, stream time by events on a GPU (read without stalling it)."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._pending: list[tuple[Any, Any]] = []  # torch does not type its events

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Time the block."""
        if self._cuda:
            event: Any = torch.cuda.Event
            begin, end = event(enable_timing=True), event(enable_timing=True)
            begin.record()
            yield
            end.record()
            self._pending.append((begin, end))
            if len(self._pending) > 1024:
                self._collect()
            return
        start = time.perf_counter()
        yield
        self._seconds += time.perf_counter() - start

    def _collect(self) -> None:
        left = []
        for begin, end in self._pending:
            if end.query():
                self._seconds += begin.elapsed_time(end) / 1e3
            else:
                left.append((begin, end))
        self._pending = left

    @property
    def seconds(self) -> float:
        """Total so far; work that a GPU has not finished is left out."""
        self._collect()
        return self._seconds


@dataclass(slots=True)
class Counters:
    """Totals since construction, of this rank.

    `as_dict` gives them as metric name and labels -> value; the names are `kinemill.contracts.METRICS`.
    """

    ns: Stopwatch
    exposed: Stopwatch
    """Waiting for an exchange with nothing left to compute meanwhile."""
    step: Stopwatch
    steps: int = 0
    bytes_out: dict[str, int] = field(default_factory=lambda: {"node": 0, "cross": 0, "world": 0})
    """Bytes this rank sent, by the kind of group. `cross` and `world` use the fabric; `node` never does."""
    exchanges: int = 0
    digests: int = 0
    imbalance: float = 0.0
    padding: float = 0.0

    def as_dict(self) -> dict[tuple[str, str], float]:
        """For a Prometheus exporter."""
        rows: dict[tuple[str, str], float] = {
            ("kinemill_optimizer_bytes_total", kind): float(n) for kind, n in self.bytes_out.items()
        }
        for phase, watch in (("newton_schulz", self.ns), ("exposed_exchange", self.exposed), ("step", self.step)):
            rows["kinemill_optimizer_seconds", phase] = watch.seconds
        return rows
