"""What ingest asks of the system of record, as a Protocol, and the fake that tests use.

The real one is `kinemill.pipelines.ingest.catalog_ledger.CatalogLedger`; both pass the same tests.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kinemill.contracts import EpisodeState, QuarantineRecord, Rendition, RunStatus, StepResult, StepStatus
from kinemill.errors import ConflictError, StateError
from kinemill.pipelines.adapters.base import Finding

__all__ = ["EpisodeEntry", "Ledger", "MemoryLedger"]


@dataclass(frozen=True, slots=True)
class EpisodeEntry:
    """One episode to be published, with the object that was read back."""

    vendor: str
    vendor_key: str
    """The episode as its vendor would name it; with `vendor` unique."""
    delivery: str
    batch: str
    robot: str
    task: str
    instruction: str
    rendition: Rendition
    frames: int
    """Of the reference camera; 0 without cameras."""
    fps: float
    findings: tuple[Finding, ...] = ()
    """Of the post-gate; none of them FAIL."""
    degraded_steps: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    """Measured numbers by check name, such as the PSNR of what was read back."""


class Ledger(Protocol):
    """Completion of steps, episodes and quarantine. Every call may raise `UnavailableError`."""

    def finished(self, batch: str, step: str, version: int, input_digest: str) -> StepResult | None:
        """The result of that step on that input, where it ended; None where it did not."""
        ...

    def claim(self, batch: str, step: str, version: int, input_digest: str) -> str:
        """Take the step; the token has to be given back by `finish` or `release`.

        Raises:
            ConflictError: Somebody else runs it, and lives.
            StateError: It is finished already.
        """
        ...

    def finish(self, token: str, result: StepResult) -> None:
        """It ended; from now on `finished` says so."""
        ...

    def release(self, token: str) -> None:
        """It did not end; somebody may claim it again."""
        ...

    def run_started(self, batch: str, vendor: str, delivery: str, plan: dict[str, object]) -> None:
        """A run of this batch begins, or begins again."""
        ...

    def run_ended(self, batch: str, status: RunStatus) -> None:
        """It ended."""
        ...

    def publish(self, entry: EpisodeEntry) -> EpisodeState:
        """Record the episode and its object, and offer it to curation; the same entry twice is one episode."""
        ...

    def quarantine(self, record: QuarantineRecord) -> None:
        """Put something aside, with its reason; the same record twice is one."""
        ...

    def quarantined(self, batch: str) -> Sequence[QuarantineRecord]:
        """All that was put aside in this batch and not resolved since."""
        ...


class MemoryLedger:
    """A `Ledger` in dictionaries."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[str, tuple[str, str, int, str]] = {}
        self.results: dict[tuple[str, str, int, str], StepResult] = {}
        self.episodes: dict[tuple[str, str], EpisodeEntry] = {}
        self.runs: dict[str, RunStatus] = {}
        self.records: list[QuarantineRecord] = []

    def finished(self, batch: str, step: str, version: int, input_digest: str) -> StepResult | None:
        """See `Ledger`."""
        return self.results.get((batch, step, version, input_digest))

    def claim(self, batch: str, step: str, version: int, input_digest: str) -> str:
        """See `Ledger`."""
        key = (batch, step, version, input_digest)
        with self._lock:
            if key in self.results:
                raise StateError(f"{batch}: step {step} is finished already")
            if key in self._claims.values():
                raise ConflictError(f"{batch}: step {step} runs elsewhere")
            token = uuid.uuid4().hex
            self._claims[token] = key
            return token

    def finish(self, token: str, result: StepResult) -> None:
        """See `Ledger`."""
        with self._lock:
            key = self._claims.pop(token)
            if result.status is StepStatus.FAILED and key[1] == "publish":
                raise StateError("a failed publish is released, not finished")
            self.results[key] = result

    def release(self, token: str) -> None:
        """See `Ledger`."""
        with self._lock:
            self._claims.pop(token, None)

    def run_started(self, batch: str, vendor: str, delivery: str, plan: dict[str, object]) -> None:
        """See `Ledger`."""
        self.runs[batch] = RunStatus.RUNNING

    def run_ended(self, batch: str, status: RunStatus) -> None:
        """See `Ledger`."""
        self.runs[batch] = status

    def publish(self, entry: EpisodeEntry) -> EpisodeState:
        """See `Ledger`."""
        with self._lock:
            self.episodes[entry.vendor, entry.vendor_key] = entry
        return EpisodeState.PUBLISHED

    def quarantine(self, record: QuarantineRecord) -> None:
        """See `Ledger`."""
        with self._lock:
            same = (record.batch, record.source, record.stage, record.code)
            if all((r.batch, r.source, r.stage, r.code) != same for r in self.records):
                self.records.append(record)

    def quarantined(self, batch: str) -> Sequence[QuarantineRecord]:
        """See `Ledger`."""
        return [r for r in self.records if r.batch == batch]
