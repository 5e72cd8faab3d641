"""Runs and steps: what was done to which input, claimed by one worker at a time."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa

from kinemill.contracts import RunStatus, StepResult, StepStatus
from kinemill.errors import ConflictError, DataError, NotFoundError
from kinemill.pipelines.catalog.records import StepClaim, plain_json, plain_text

__all__ = ["claim", "close_run", "done", "finish", "open_run", "record", "renew", "run_status", "steps"]

_KEY = "batch = :batch and step = :step and step_version = :step_version and input_digest = :input_digest"


def _key(of: StepClaim | StepResult) -> dict[str, Any]:
    return {
        "batch": plain_text(of.batch, "batch"),
        "step": plain_text(of.step, "step"),
        "step_version": of.step_version,
        "input_digest": of.input_digest,
    }


def claim(connection: sa.Connection, wanted: StepClaim, *, by: str, lease_s: float) -> StepClaim | None:
    """See `Catalog.claim_step`. Leases end by the database's clock alone, so that no worker's clock matters."""
    token = uuid.uuid4()
    row = connection.execute(
        sa.text("""
            insert into kinemill.run_step as s (batch, step, step_version, input_digest, state, claimed_by, claim_token,
                lease_until)
            values (:batch, :step, :step_version, :input_digest, 'claimed', :by, :token,
                clock_timestamp() + make_interval(secs => :lease_s))
            on conflict (batch, step, step_version, input_digest) do update set
                state = 'claimed', claimed_by = excluded.claimed_by, claim_token = excluded.claim_token,
                lease_until = excluded.lease_until, claimed_at = clock_timestamp(), finished_at = null,
                attempts = s.attempts + 1
            where s.state = 'failed' or (s.state = 'claimed' and s.lease_until < clock_timestamp())
            returning attempts
        """),
        {**_key(wanted), "by": plain_text(by, "claimed_by"), "token": token, "lease_s": lease_s},
    ).scalar_one_or_none()
    return None if row is None else replace(wanted, token=str(token), attempt=int(row))


def renew(connection: sa.Connection, held: StepClaim, lease_s: float) -> None:
    """See `Catalog.renew_step`."""
    found = connection.execute(
        sa.text(f"""
            update kinemill.run_step set lease_until = clock_timestamp() + make_interval(secs => :lease_s)
            where {_KEY} and state = 'claimed' and claim_token = :token
        """),  # noqa: S608 - a constant
        {**_key(held), "token": uuid.UUID(held.token), "lease_s": lease_s},
    ).rowcount
    if not found:
        raise ConflictError(f"step {held.step} of {held.batch}: another worker has taken it over; stop this one")


_OUTCOME = {
    StepStatus.OK: "ok",
    StepStatus.WARN: "warn",
    StepStatus.FAILED: "failed",
    StepStatus.SKIPPED: "skipped",
}


def _result(result: StepResult) -> dict[str, Any]:
    return {
        **_key(result),
        "state": _OUTCOME[result.status],
        "output_digest": plain_text(result.output_digest, "output_digest"),
        "seconds": result.seconds,
        "counts": plain_json(result.counts, "counts"),
        "messages": [plain_text(message, "message") for message in result.messages],
    }


_SET = """state = :state, output_digest = :output_digest, seconds = :seconds, counts = cast(:counts as jsonb),
    messages = cast(:messages as text[]), finished_at = clock_timestamp(), lease_until = null"""


def finish(connection: sa.Connection, held: StepClaim, result: StepResult) -> None:
    """See `Catalog.finish_step`."""
    if (held.batch, held.step, held.step_version, held.input_digest) != (
        result.batch,
        result.step,
        result.step_version,
        result.input_digest,
    ):
        raise DataError(f"step {held.step} of {held.batch}: the result is of another step or input")
    found = connection.execute(
        sa.text(f"update kinemill.run_step set {_SET} where {_KEY} and state = 'claimed' and claim_token = :token"),  # noqa: S608
        {**_result(result), "token": uuid.UUID(held.token)},
    ).rowcount
    if not found:
        raise ConflictError(
            f"step {held.step} of {held.batch}: its lease ended and another worker took it; this result does not count"
        )


def record(connection: sa.Connection, result: StepResult) -> bool:
    """See `Catalog.record_step`."""
    found = connection.execute(
        sa.text(f"""
            insert into kinemill.run_step as s (batch, step, step_version, input_digest, state, claim_token,
                output_digest,
                seconds, counts, messages, finished_at)
            values (:batch, :step, :step_version, :input_digest, :state, gen_random_uuid(), :output_digest, :seconds,
                cast(:counts as jsonb), cast(:messages as text[]), clock_timestamp())
            on conflict (batch, step, step_version, input_digest) do update set {_SET}, attempts = s.attempts + 1
            where s.state = 'failed'
        """),  # noqa: S608 - constants
        _result(result),
    ).rowcount
    return bool(found)


_COLUMNS = "batch, step, step_version, input_digest, state, output_digest, seconds, counts, messages"


def _to_result(row: Any) -> StepResult:
    return StepResult(
        batch=row.batch,
        step=row.step,
        step_version=row.step_version,
        status=StepStatus(row.state),
        input_digest=row.input_digest,
        output_digest=row.output_digest,
        seconds=row.seconds,
        counts={str(k): int(v) for k, v in row.counts.items()},
        messages=tuple(row.messages),
    )


def done(connection: sa.Connection, wanted: StepClaim) -> StepResult | None:
    """See `Catalog.step_done`."""
    row = connection.execute(
        sa.text(f"select {_COLUMNS} from kinemill.run_step where {_KEY} and state in ('ok', 'warn', 'skipped')"),  # noqa: S608
        _key(wanted),
    ).one_or_none()
    return None if row is None else _to_result(row)


def steps(connection: sa.Connection, batch: str) -> list[StepResult]:
    """See `Catalog.steps`."""
    rows = connection.execute(
        sa.text(f"""
            select {_COLUMNS} from kinemill.run_step where batch = :batch and state <> 'claimed'
            order by claimed_at, step, input_digest
        """),  # noqa: S608 - a constant
        {"batch": batch},
    )
    return [_to_result(row) for row in rows]


def open_run(connection: sa.Connection, batch: str, delivery_id: int | None, plan: Mapping[str, Any]) -> int:
    """See `Catalog.open_run`."""
    return int(
        connection.execute(
            sa.text("""
                insert into kinemill.run (batch, delivery_id, plan) values (:batch, :delivery_id, cast(:plan as jsonb))
                on conflict (batch) do update set status = 'running', finished_at = null,
                    delivery_id = coalesce(excluded.delivery_id, run.delivery_id),
                    plan = case when excluded.plan = '{}' then run.plan else excluded.plan end
                returning id
            """),
            {"batch": plain_text(batch, "batch"), "delivery_id": delivery_id, "plan": plain_json(plan, "plan")},
        ).scalar_one()
    )


def close_run(connection: sa.Connection, batch: str, non_critical: Sequence[str]) -> RunStatus:
    """See `Catalog.close_run`."""
    failed = set(
        connection.execute(
            sa.text("select distinct step from kinemill.run_step where batch = :batch and state = 'failed'"),
            {"batch": batch},
        ).scalars()
    )
    status = RunStatus.SUCCESS
    if failed:
        status = RunStatus.DEGRADED if failed <= set(non_critical) else RunStatus.FAILED
    if status is RunStatus.DEGRADED:
        connection.execute(
            sa.text("""
                update kinemill.episode set degraded_steps =
                    (select array_agg(distinct s order by s) from unnest(degraded_steps || cast(:steps as text[])) s)
                where batch = :batch and not degraded_steps @> cast(:steps as text[])
            """),
            {"batch": batch, "steps": sorted(failed)},
        )
    changed = connection.execute(
        sa.text("update kinemill.run set status = :status, finished_at = clock_timestamp() where batch = :batch"),
        {"batch": batch, "status": status.value},
    ).rowcount
    if not changed:
        raise NotFoundError(f"no run of batch {batch!r}: open it first")
    return status


def run_status(connection: sa.Connection, batch: str) -> RunStatus | None:
    """See `Catalog.run_status`."""
    found = connection.execute(
        sa.text("select status from kinemill.run where batch = :batch"), {"batch": batch}
    ).scalar_one_or_none()
    return None if found is None else RunStatus(found)
