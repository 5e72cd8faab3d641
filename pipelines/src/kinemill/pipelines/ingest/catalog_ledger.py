"""`Ledger` on the catalog."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from kinemill.contracts import EpisodeState, QuarantineRecord, RunStatus, StepResult, StepStatus
from kinemill.errors import ConflictError
from kinemill.pipelines.catalog.api import Catalog
from kinemill.pipelines.catalog.records import EpisodeCard, Outcome, QualityRecord, StepClaim
from kinemill.pipelines.ingest.ledger import EpisodeEntry
from kinemill.process import ProcessId

__all__ = ["CatalogLedger"]

POST_GATE_VERSION = 1

_NEXT = {
    EpisodeState.QUARANTINED: EpisodeState.INGESTED,
    EpisodeState.INGESTED: EpisodeState.VALIDATED,
    EpisodeState.VALIDATED: EpisodeState.PUBLISHED,
}
"""The way of an episode whose object was read back and that passed the post-gate."""


class CatalogLedger:
    """The system of record behind `kinemill.pipelines.ingest.ledger.Ledger`. Thread-safe.

    Args:
        catalog: An open catalog; the caller closes it.
        lease_s: How long a claim outlives its owner. Short, so that a run that was killed can be started again soon.
    """

    def __init__(self, catalog: Catalog, *, lease_s: float = 30.0) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()
        self._claims: dict[str, StepClaim] = {}
        self._deliveries: dict[str, int] = {}
        self._me = _owner(os.getpid())
        self.lease_s = lease_s

    def finished(self, batch: str, step: str, version: int, input_digest: str) -> StepResult | None:
        """See `Ledger`."""
        return self._catalog.step_done(batch, step, version, input_digest)

    def claim(self, batch: str, step: str, version: int, input_digest: str) -> str | None:
        """See `Ledger`."""
        held = self._catalog.claim_step(batch, step, version, input_digest, by=self._me, lease_s=self.lease_s)
        if held is None:
            return None
        with self._lock:
            self._claims[held.token] = held
        return held.token

    def renew(self, token: str) -> None:
        """See `Ledger`."""
        self._catalog.renew_step(self._claims[token], lease_s=self.lease_s)

    def finish(self, token: str, result: StepResult) -> None:
        """See `Ledger`."""
        self._catalog.finish_step(self._claims[token], result)
        with self._lock:
            self._claims.pop(token, None)

    def release(self, token: str, why: str) -> None:
        """See `Ledger`."""
        with self._lock:
            held = self._claims.pop(token, None)
        if held is not None:
            failed = StepResult(
                held.batch, held.step, held.step_version, StepStatus.FAILED, held.input_digest, messages=(why[:2000],)
            )
            self._catalog.finish_step(held, failed)

    def record(self, result: StepResult) -> None:
        """See `Ledger`."""
        self._catalog.record_step(result)

    def run_started(self, batch: str, vendor: str, delivery: str, plan: dict[str, object]) -> None:
        """See `Ledger`."""
        self._end_dead_claims(batch)
        self._deliveries[batch] = self._catalog.register_delivery(vendor, delivery)
        self._catalog.open_run(batch, delivery_id=self._deliveries[batch], plan=plan)

    def _end_dead_claims(self, batch: str) -> None:
        """End the leases of this machine's dead processes now: nobody has to wait for them to run out."""
        import sqlalchemy as sa

        with self._catalog.transaction(f"looking for dead claims of {batch}") as connection:
            rows = connection.execute(
                sa.text(
                    "select claimed_by, claim_token from kinemill.run_step where batch = :batch and state = 'claimed'"
                ),
                {"batch": batch},
            ).all()
            dead = [row.claim_token for row in rows if _is_dead(str(row.claimed_by))]
            if dead:
                connection.execute(
                    sa.text("""
                        update kinemill.run_step set lease_until = clock_timestamp() - interval '1 second'
                        where batch = :batch and state = 'claimed' and claim_token = any(:dead)
                    """),
                    {"batch": batch, "dead": dead},
                )

    def run_ended(self, batch: str, non_critical: Sequence[str]) -> RunStatus:
        """See `Ledger`."""
        return self._catalog.close_run(batch, non_critical=non_critical)

    def publish(self, entry: EpisodeEntry) -> EpisodeState:
        """See `Ledger`.

        Raises:
            ConflictError: Another episode has the vendor's key or these very bytes.
        """
        rendition = entry.rendition
        card = EpisodeCard(
            episode_id=rendition.episode_id,
            vendor=entry.vendor,
            vendor_key=entry.vendor_key,
            robot=entry.robot,
            task=entry.task,
            instruction=entry.instruction,
            frames=entry.frames,
            fps=entry.fps,
        )
        (done,) = self._catalog.register_episodes(
            [(card, rendition)],
            delivery_id=self._deliveries.get(entry.batch),
            batch=entry.batch,
            verified=True,
        )
        if done.outcome is Outcome.DUPLICATE:
            raise ConflictError(
                f"{entry.vendor_key}: the catalog has this episode already, as {done.episode_id}; nothing was changed"
            )
        self._catalog.record_quality(_quality(entry))
        state = self._catalog.episode(done.episode_id).state
        while state in _NEXT:
            state = _NEXT[state]
            self._catalog.set_state([done.episode_id], state)
        return state

    def quarantine(self, record: QuarantineRecord) -> None:
        """See `Ledger`."""
        self._catalog.record_quarantine([replace(record, message=record.message.replace("\0", "?"))])

    def quarantined(self, batch: str) -> Sequence[QuarantineRecord]:
        """See `Ledger`."""
        return self._catalog.quarantined(batch=batch)


def _owner(pid: int) -> str:
    """A process so that it can be told dead: host, boot, pid namespace, pid, start time. Empty where it is gone."""
    found = ProcessId.of(pid)
    if found is None:
        return ""
    return f"{_ground()}/{found.pid}/{found.start_ticks}"


def _ground() -> str:
    """What pids mean: another host, boot or container counts its own."""
    found = ProcessId.of(os.getpid())
    boot = found.boot_id if found is not None else ""
    namespace = Path("/proc/self/ns/pid").readlink()
    return f"{socket.gethostname()}/{boot}/{namespace}"


def _is_dead(owner: str) -> bool:
    """True where `owner` is a process of this very ground that does not live; False where nobody can tell."""
    ground, _, rest = owner.rpartition("/")[0].rpartition("/")
    if ground != _ground() or not rest.isdigit():
        return False
    return _owner(int(rest)) != owner


def _quality(entry: EpisodeEntry) -> list[QualityRecord]:
    """The gate's verdict, and each measured number as a check of its own that nothing depends on."""
    notes = {f.code: f.message for f in entry.findings}
    verdict = QualityRecord(
        entry.rendition.episode_id,
        "post_gate",
        POST_GATE_VERSION,
        passed=True,
        evidence=notes,
        object_key=entry.rendition.key,
    )
    numbers = [
        QualityRecord(
            entry.rendition.episode_id,
            name,
            POST_GATE_VERSION,
            passed=True,
            critical=False,
            score=value,
            object_key=entry.rendition.key,
        )
        for name, value in sorted(entry.scores.items())
    ]
    return [verdict, *numbers]
