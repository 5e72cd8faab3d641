"""Reading the catalog."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from kinemill.contracts import EpisodeState, Rendition
from kinemill.pipelines.catalog.records import (
    EpisodeCard,
    EpisodeRow,
)
from kinemill.pipelines.catalog.register import unpack_receipt

__all__ = ["counts", "episodes", "find", "renditions"]


def _episode_row(row: Any) -> EpisodeRow:
    recorded_at_ns = None if row.recorded_at is None else round(row.recorded_at.timestamp() * 1e6) * 1000
    card = EpisodeCard(
        episode_id=row.id,
        vendor=row.vendor,
        vendor_key=row.vendor_key,
        robot=row.robot,
        task=row.task,
        instruction=row.instruction,
        language=row.language,
        split=row.split,
        site=row.site,
        recorded_at_ns=recorded_at_ns,
        frames=row.frames,
        fps=row.fps,
    )
    return EpisodeRow(
        card=card,
        state=EpisodeState(row.state),
        row_version=row.row_version,
        batch=row.batch,
        delivery=row.delivery,
        duration_ns=row.duration_ns,
        frames=row.frames,
        fps=row.fps,
        degraded_steps=tuple(row.degraded_steps),
        purged=row.purged_at is not None,
    )


def episodes(
    connection: sa.Connection,
    *,
    ids: Sequence[str] | None = None,
    batch: str | None = None,
    state: EpisodeState | None = None,
    after: str | None = None,
    limit: int = 10_000,
) -> list[EpisodeRow]:
    """See `Catalog.episodes`."""
    wheres = ["true"]
    values: dict[str, Any] = {"limit": limit}
    for name, value, condition in (
        ("ids", None if ids is None else list(ids), "e.id = any(cast(:ids as uuid[]))"),
        ("batch", batch, "e.batch = :batch"),
        ("state", None if state is None else state.value, "e.state = :state"),
        ("after", after, "e.id > cast(:after as uuid)"),
    ):
        if value is not None:
            wheres.append(condition)
            values[name] = value
    rows = connection.execute(
        sa.text(f"""
            select e.id::text as id, v.name as vendor, e.vendor_key, r.name as robot, t.name as task,
                e.instruction,
                e.language, e.split, e.site, e.recorded_at, e.frames, e.fps, e.duration_ns, e.state,
                    e.row_version,
                e.batch, d.name as delivery, e.degraded_steps, e.purged_at
            from kinemill.episode e
            join kinemill.vendor v on v.id = e.vendor_id
            join kinemill.robot r on r.id = e.robot_id
            join kinemill.task t on t.id = e.task_id
            left join kinemill.delivery d on d.id = e.delivery_id
            where {" and ".join(wheres)} order by e.id limit :limit
        """),  # noqa: S608 - the conditions are the constants above
        values,
    ).all()
    return [_episode_row(row) for row in rows]


def find(connection: sa.Connection, vendor: str, vendor_keys: Sequence[str]) -> dict[str, str]:
    """See `Catalog.find`."""
    rows = connection.execute(
        sa.text("""
            select e.vendor_key, e.id::text from kinemill.episode e join kinemill.vendor v on v.id = e.vendor_id
            where v.name = :vendor and e.vendor_key = any(cast(:keys as text[]))
        """),
        {"vendor": vendor, "keys": list(vendor_keys)},
    )
    return {str(row[0]): str(row[1]) for row in rows}


def renditions(connection: sa.Connection, episode_ids: Sequence[str], *, all_versions: bool = False) -> list[Rendition]:
    """See `Catalog.renditions`."""
    rows = connection.execute(
        sa.text("""
            select r.episode_id::text as episode_id, r.profile, r.object_key, r.etag, c.receipt
            from kinemill.rendition r join kinemill.rendition_receipt c on c.rendition_id = r.id
            where r.episode_id = any(cast(:ids as uuid[])) and (r.current or :all)
            order by r.episode_id, r.profile, r.id
        """),
        {"ids": list(episode_ids), "all": all_versions},
    ).all()
    return [
        Rendition(row.episode_id, row.profile, row.object_key, unpack_receipt(bytes(row.receipt)), row.etag)
        for row in rows
    ]


def counts(connection: sa.Connection) -> dict[str, int]:
    """See `Catalog.counts`."""
    found = {
        str(s): int(n)
        for s, n in connection.execute(sa.text("select state, count(*) from kinemill.episode group by state"))
    }
    tables = ("delivery", "rendition", "quality_result", "label", "quarantine", "run_step", "manifest", "purge")
    counted = connection.execute(
        sa.text(" union all ".join(f"select '{t}' as t, count(*) as n from kinemill.{t}" for t in tables))  # noqa: S608
    )
    found.update({str(t): int(n) for t, n in counted})
    return found
