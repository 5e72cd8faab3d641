"""Manifests and which episodes they hold."""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import sqlalchemy as sa

from kinemill.errors import ConflictError
from kinemill.pipelines.catalog.records import (
    ManifestRecord,
    plain_json,
    plain_text,
)

__all__ = ["manifests_of", "record", "withdrawn_in"]


def record(connection: sa.Connection, manifest: ManifestRecord, episode_ids: Iterable[str | bytes]) -> bool:
    """See `Catalog.record_manifest`."""
    number = connection.execute(
        sa.text("""
            insert into kinemill.manifest (id, object_key, spec_sha256, sha256, snapshot_id, seed, row_count,
                size_bytes, hours, creator, details)
            values (:id, :object_key, :spec, :sha, :snapshot_id, :seed, :rows, :size_bytes, :hours, :creator,
                cast(:details as jsonb))
            on conflict (id) do nothing returning number
        """),
        {
            "id": plain_text(manifest.id, "manifest id"),
            "object_key": plain_text(manifest.object_key, "object_key"),
            "spec": bytes.fromhex(manifest.spec_sha256),
            "sha": bytes.fromhex(manifest.sha256),
            "snapshot_id": manifest.snapshot_id,
            "seed": manifest.seed,
            "rows": manifest.rows,
            "size_bytes": manifest.size_bytes,
            "hours": manifest.hours,
            "creator": plain_text(manifest.creator, "creator"),
            "details": plain_json(manifest.details, "details"),
        },
    ).scalar_one_or_none()
    if number is None:
        known = connection.execute(
            sa.text("select sha256 from kinemill.manifest where id = :id"), {"id": manifest.id}
        ).scalar_one()
        if bytes(known).hex() != manifest.sha256:
            raise ConflictError(f"manifest {manifest.id} is recorded with other content")
        return False
    driver = connection.connection.driver_connection
    assert driver is not None  # noqa: S101 - the connection is open
    with (
        driver.cursor() as cursor,
        cursor.copy("copy kinemill.manifest_use (manifest_number, episode_id) from stdin with (format binary)") as copy,
    ):
        copy.set_types(["int4", "uuid"])
        seen: set[bytes] = set()
        for one in episode_ids:
            key = one if isinstance(one, bytes) else uuid.UUID(one).bytes
            if key not in seen:  # two renditions of one episode are one use
                seen.add(key)
                copy.write_row((number, uuid.UUID(bytes=key)))
    return True


def manifests_of(connection: sa.Connection, episode_id: str) -> list[str]:
    """See `Catalog.manifests_of`."""
    return list(
        connection.execute(
            sa.text("""
                select m.id from kinemill.manifest m
                    join kinemill.manifest_use u on u.manifest_number = m.number
                where u.episode_id = cast(:id as uuid) order by m.number
            """),
            {"id": episode_id},
        ).scalars()
    )


def withdrawn_in(connection: sa.Connection, manifest_id: str) -> dict[str, str]:
    """See `Catalog.withdrawn_in`."""
    rows = connection.execute(
        sa.text("""
            select e.id::text, case when e.purged_at is null then 'retired' else 'purged' end
            from kinemill.manifest m join kinemill.manifest_use u on u.manifest_number = m.number
            join kinemill.episode e on e.id = u.episode_id
            where m.id = :id and e.state = 'retired' order by e.id
        """),
        {"id": manifest_id},
    )
    return {str(row[0]): str(row[1]) for row in rows}
