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
from kinemill.errors import ConflictError
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

    @property
    def lease_s(self) -> float:
        """How long a claim outlives its owner, unless renewed."""
        ...

    def claim(self, batch: str, step: str, version: int, input_digest: str) -> str | None:
        """Take the step; the token has to be given back by `finish` or `release`. None where it is done or taken."""
        ...

    def renew(self, token: str) -> None:
        """Extend the claim by `lease_s` from now.

        Raises:
            ConflictError: It ran out and somebody else took the step.
        """
        ...

    def finish(self, token: str, result: StepResult) -> None:
        """It ended; from now on `finished` says so.

        Raises:
            ConflictError: The claim ran out and somebody else took the step: this result does not count.
        """
        ...

    def release(self, token: str, why: str) -> None:
        """It failed by a fault of ours; somebody may claim it again."""
        ...

    def record(self, result: StepResult) -> None:
        """Note the result of a step that nobody claims; a result that stands already stays."""
        ...

    def run_started(self, batch: str, vendor: str, delivery: str, plan: dict[str, object]) -> None:
        """A run of this batch begins, or begins again."""
        ...

    def run_ended(self, batch: str, non_critical: Sequence[str]) -> RunStatus:
        """It ended; how, by what its steps say."""
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
        self.lease_s = 30.0
        self.results: dict[tuple[str, str, int, str], StepResult] = {}
        self.episodes: dict[tuple[str, str], EpisodeEntry] = {}
        self.runs: dict[str, RunStatus] = {}
        self.records: list[QuarantineRecord] = []

    def finished(self, batch: str, step: str, version: int, input_digest: str) -> StepResult | None:
        """See `Ledger`."""
        key = (batch, step, version, input_digest)
        return self.results[key] if self._done(key) else None

    def claim(self, batch: str, step: str, version: int, input_digest: str) -> str | None:
        """See `Ledger`."""
        key = (batch, step, version, input_digest)
        with self._lock:
            if key in self._claims.values() or self._done(key):
                return None
            token = uuid.uuid4().hex
            self._claims[token] = key
            return token

    def _done(self, key: tuple[str, str, int, str]) -> bool:
        return key in self.results and self.results[key].status is not StepStatus.FAILED

    def renew(self, token: str) -> None:
        """See `Ledger`."""
        if token not in self._claims:
            raise ConflictError("the claim ran out and somebody else took the step")

    def finish(self, token: str, result: StepResult) -> None:
        """See `Ledger`."""
        self.renew(token)
        with self._lock:
            self.results[self._claims.pop(token)] = result

    def release(self, token: str, why: str) -> None:
        """See `Ledger`."""
        with self._lock:
            key = self._claims.pop(token, None)
            if key is not None:
                self.results[key] = StepResult(key[0], key[1], key[2], StepStatus.FAILED, key[3], messages=(why,))

    def record(self, result: StepResult) -> None:
        """See `Ledger`."""
        key = (result.batch, result.step, result.step_version, result.input_digest)
        with self._lock:
            if not self._done(key):
                self.results[key] = result

    def run_started(self, batch: str, vendor: str, delivery: str, plan: dict[str, object]) -> None:
        """See `Ledger`."""
        self.runs[batch] = RunStatus.RUNNING

    def run_ended(self, batch: str, non_critical: Sequence[str]) -> RunStatus:
        """See `Ledger`."""
        failed = {r.step for r in self.results.values() if r.batch == batch and r.status is StepStatus.FAILED}
        whole = failed <= set(non_critical)
        self.runs[batch] = RunStatus.SUCCESS if not failed else RunStatus.DEGRADED if whole else RunStatus.FAILED
        return self.runs[batch]

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
