"""A broken sample is masked, counted by its reason, written down, and never hangs a job.

Retries happen below, in the store, within bounds. What still fails here becomes a masked sample
(zeros, all padding, `valid` False) and one quarantine record per episode and reason. Too many of
them stop the job: training on holes is worse than not training.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import ClassVar

from kinemill.contracts import QuarantineRecord
from kinemill.errors import (
    ConflictError,
    ContractError,
    CorruptError,
    DataError,
    DeadlineError,
    KinemillError,
    LimitError,
    NotFoundError,
    TruncatedError,
    UnavailableError,
    UnsupportedError,
)
from kinemill.loaders.quarantine import Spool, write_record

__all__ = ["Faults", "TooManyMaskedError", "reason_of"]

log = logging.getLogger(__name__)

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (NotFoundError, "not_found"),
    (TruncatedError, "truncated"),
    (CorruptError, "corrupt"),
    (UnsupportedError, "unsupported"),
    (LimitError, "limit"),
    (DeadlineError, "deadline"),
    (UnavailableError, "unavailable"),
    (ConflictError, "changed"),
    (ContractError, "bad_row"),
    (DataError, "data"),
)


class TooManyMaskedError(DataError):
    """The share of masked samples passed its ceiling; the job stops."""

    exit_code: ClassVar[int] = 1


def reason_of(error: KinemillError) -> str:
    """The short code under which a fault is counted; stable, since alerts read it."""
    return next((code for kind, code in _REASONS if isinstance(error, kind)), "other")


@dataclass(slots=True)
class Faults:
    """Counts of one process, its ceiling, and its spool.

    Attributes:
        spool: Where quarantine records go, shared by the workers of a rank; None: nowhere.
        max_share: Of masked samples; above it `TooManyMaskedError`.
        min_samples: The share is judged from here on.
        max_in_a_row: Masked samples without a good one between; bounds the wait when a store is gone.
    """

    spool: Spool | None = None
    max_share: float = 0.01
    min_samples: int = 1000
    max_in_a_row: int = 64
    samples: int = 0
    masked: Counter[str] = field(default_factory=Counter)
    absent: Counter[str] = field(default_factory=Counter)
    in_a_row: int = 0
    _known: set[tuple[str, str]] = field(default_factory=set)

    def good(self, count: int = 1) -> None:
        """Samples that are whole."""
        self.samples += count
        self.in_a_row = 0

    def note_absent(self, topic: str) -> None:
        """A topic that an episode does not have: padded, told, and no fault of the sample."""
        self.absent[topic] += 1

    def mask(self, error: KinemillError, *, source: str, episode_id: str | None) -> str:
        """Count and spool one masked sample.

        Returns:
            The reason's code.

        Raises:
            TooManyMaskedError: The ceiling is passed.
        """
        code = reason_of(error)
        self.samples += 1
        self.masked[code] += 1
        self.in_a_row += 1
        if (source, code) not in self._known:
            if len(self._known) < 100_000:  # enough to tell once; a bound on memory, not on what is counted
                self._known.add((source, code))
            log.warning("masked (%s): %s: %s", code, source, error)
            self._write(
                QuarantineRecord(
                    source=source,
                    stage="loader",
                    code=code,
                    message=str(error)[:2000],
                    episode_id=episode_id,
                    at_ns=time.time_ns(),
                    evidence={"error": type(error).__name__, "transient": str(error.transient).lower()},
                )
            )
        self._judge()
        return code

    def _judge(self) -> None:
        total = sum(self.masked.values())
        share = total / self.samples
        over = self.samples >= self.min_samples and share > self.max_share
        if over or self.in_a_row >= self.max_in_a_row:
            reasons = ", ".join(f"{code} {count}" for code, count in self.masked.most_common(4))
            what = f"{share:.1%} of {self.samples} samples masked, ceiling {self.max_share:.1%}"
            if not over:
                what = f"{self.in_a_row} samples in a row masked (of {self.samples}, {total} masked)"
            where = f"; records in {self.spool}" if self.spool else ""
            raise TooManyMaskedError(f"{what}; reasons: {reasons}{where}; see `kinemill load show --quarantine`")

    def _write(self, record: QuarantineRecord) -> None:
        if self.spool is not None:
            write_record(self.spool, record)
