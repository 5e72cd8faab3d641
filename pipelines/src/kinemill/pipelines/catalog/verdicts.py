"""What gates and people say of episodes: quality, labels, quarantine."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from kinemill.contracts import QuarantineRecord
from kinemill.errors import DataError, NotFoundError
from kinemill.pipelines.catalog.records import (
    LabelRecord,
    QualityRecord,
    plain_json,
    plain_text,
)

__all__ = ["quarantined", "record_labels", "record_quality", "record_quarantine", "retract_labels"]


def record_quality(connection: sa.Connection, results: Sequence[QualityRecord]) -> None:
    if not results:
        return
    if len({(one.episode_id, one.object_key, one.check, one.version) for one in results}) < len(results):
        raise DataError("the same check of the same episode twice in one call")
    written = connection.execute(
        sa.text("""
            insert into kinemill.quality_result as q (episode_id, rendition_id, check_name, check_version, critical,
                passed,
                score, message, evidence)
            select u.id, r.id, u.check_name, u.check_version, u.critical, u.passed, u.score, u.message,
                cast(u.evidence as jsonb)
            from unnest(cast(:id as uuid[]), cast(:key as text[]), cast(:check as text[]), cast(:version as integer[]),
                cast(:critical as boolean[]), cast(:passed as boolean[]), cast(:score as double precision[]),
                cast(:message as text[]), cast(:evidence as text[]))
                u (id, object_key, check_name, check_version, critical, passed, score, message, evidence)
            left join kinemill.rendition r on r.object_key = u.object_key and r.episode_id = u.id
            where u.object_key is null or r.id is not null
            order by u.id, u.check_name
            on conflict (episode_id, rendition_id, check_name,
                check_version) do update set critical = excluded.critical,
                passed = excluded.passed, score = excluded.score, message = excluded.message,
                    evidence = excluded.evidence,
                at = clock_timestamp()
        """),
        {
            "id": [one.episode_id for one in results],
            "key": [one.object_key for one in results],
            "check": [plain_text(one.check, "check") for one in results],
            "version": [one.version for one in results],
            "critical": [one.critical for one in results],
            "passed": [one.passed for one in results],
            "score": [one.score for one in results],
            "message": [plain_text(one.message, "message") for one in results],
            "evidence": [plain_json(one.evidence, "evidence") for one in results],
        },
    ).rowcount
    if written < len(results):
        raise NotFoundError(
            f"{len(results) - written} of {len(results)} results name an object that its episode has not"
        )


def record_labels(connection: sa.Connection, labels: Sequence[LabelRecord]) -> None:
    if not labels:
        return
    connection.execute(
        sa.text("""
            insert into kinemill.label as l (episode_id, label_set, label, score, author)
            select * from unnest(cast(:id as uuid[]), cast(:label_set as text[]), cast(:label as text[]),
                cast(:score as double precision[]), cast(:author as text[])) order by 1, 2, 3
            on conflict (episode_id, label_set, label) do update set score = excluded.score, author = excluded.author,
                at = clock_timestamp(), retracted_at = null
        """),
        {
            "id": [one.episode_id for one in labels],
            "label_set": [plain_text(one.label_set, "label set") for one in labels],
            "label": [plain_text(one.label, "label") for one in labels],
            "score": [one.score for one in labels],
            "author": [plain_text(one.author, "author") for one in labels],
        },
    )


def retract_labels(connection: sa.Connection, labels: Sequence[LabelRecord]) -> int:
    """See `Catalog.retract_labels`."""
    return connection.execute(
        sa.text("""
            update kinemill.label l set retracted_at = clock_timestamp()
            from unnest(cast(:ids as uuid[]), cast(:sets as text[]), cast(:labels as text[])) u (id,
                label_set, label)
            where l.episode_id = u.id and l.label_set = u.label_set and l.label = u.label
                and l.retracted_at is null
        """),
        {
            "ids": [one.episode_id for one in labels],
            "sets": [one.label_set for one in labels],
            "labels": [one.label for one in labels],
        },
    ).rowcount


def record_quarantine(connection: sa.Connection, found: Sequence[QuarantineRecord]) -> int:
    """See `Catalog.record_quarantine`."""
    if not found:
        return 0
    return connection.execute(
        sa.text("""
            insert into kinemill.quarantine (source, stage, code, message, episode_id, batch, evidence)
            select source, stage, code, message, episode_id, batch, cast(evidence as jsonb) from unnest(
                cast(:source as text[]), cast(:stage as text[]), cast(:code as text[]),
                    cast(:message as text[]),
                cast(:episode_id as uuid[]), cast(:batch as text[]), cast(:evidence as text[]))
                u (source, stage, code, message, episode_id, batch, evidence)
            on conflict (identity) do nothing
        """),
        {
            **{
                name: [plain_text(getattr(one, name), f"quarantine {name}") for one in found]
                for name in ("source", "stage", "code", "message")
            },
            "episode_id": [one.episode_id for one in found],
            "batch": [one.batch for one in found],
            "evidence": [plain_json(one.evidence, "evidence") for one in found],
        },
    ).rowcount


def quarantined(connection: sa.Connection, *, batch: str | None = None, limit: int = 10_000) -> list[QuarantineRecord]:
    """See `Catalog.quarantined`."""
    rows = connection.execute(
        sa.text("""
            select source, stage, code, message, episode_id::text as episode_id, batch, evidence,
                (extract(epoch from at) * 1000000)::bigint * 1000 as at_ns
            from kinemill.quarantine where resolved_at is null
                and (cast(:batch as text) is null or batch = :batch)
            order by id limit :limit
        """),
        {"batch": batch, "limit": limit},
    ).all()
    return [
        QuarantineRecord(
            source=row.source,
            stage=row.stage,
            code=row.code,
            message=row.message,
            episode_id=row.episode_id,
            batch=row.batch,
            at_ns=row.at_ns,
            evidence={str(k): str(v) for k, v in row.evidence.items()},
        )
        for row in rows
    ]
