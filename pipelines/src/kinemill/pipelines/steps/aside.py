"""Putting an episode or a whole recording aside, with a reason that a person understands."""

from __future__ import annotations

from collections.abc import Sequence

from kinemill.contracts import QuarantineRecord
from kinemill.pipelines.adapters.base import Finding
from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.steps.registry import StepContext

__all__ = ["put_aside"]


def put_aside(ctx: StepContext, stage: str, episode_key: str, findings: Sequence[Finding]) -> None:
    """One quarantine record: its code is the first finding's, its message holds them all.

    Args:
        ctx: The recording.
        stage: Where it was noticed.
        episode_key: The episode; empty for the whole recording.
        findings: At least one, each FAIL, the gravest first.
    """
    source = f"{ctx.delivery}/{ctx.source.key}{episode_key}"
    message = "; ".join(dict.fromkeys(f.message for f in findings))
    evidence = {k: v for f in reversed(findings) for k, v in f.evidence.items()}
    record = QuarantineRecord(
        source=source,
        stage=stage,
        code=findings[0].code,
        message=message[:4000],
        batch=ctx.batch,
        at_ns=ctx.clock.now_ns(),
        evidence=evidence,
    )
    ctx.ledger.quarantine(record)
    ctx.tell(Event("quarantine", ctx.source.key, message, {"code": record.code, "episode": episode_key}))
