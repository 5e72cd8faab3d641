"""Withdrawn consent: an episode's objects are deleted, and everybody who may hold a copy is named.

Besides the collection of expired garbage this is the only deletion there is. It is asked for once, recorded before
the first byte goes, and finished by whoever runs it again; the episode's row stays, empty, so that the same recording
cannot come back with the vendor's next drop.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import sqlalchemy as sa

from kinemill.contracts import EpisodeState, Store, may_follow, shard_of
from kinemill.errors import NotFoundError, UnavailableError, UsageError
from kinemill.pipelines.catalog.api import Catalog
from kinemill.pipelines.catalog.manifests import manifests_of
from kinemill.pipelines.catalog.records import plain_json, plain_text

__all__ = ["PurgePlan", "PurgeReport", "episode_folder", "plan_purge", "purge"]


@dataclass(frozen=True, slots=True)
class PurgePlan:
    """What a purge would do."""

    episode_id: str
    state: EpisodeState
    objects: tuple[str, ...]
    """Keys that are in the store now."""
    manifests: tuple[str, ...]
    """Manifests that hold it: whoever trained from one may hold what it learned."""
    requested: bool
    """It was asked for before, and was perhaps not finished."""


@dataclass(frozen=True, slots=True)
class PurgeReport:
    """What a purge did."""

    episode_id: str
    deleted: tuple[str, ...]
    manifests: tuple[str, ...]
    already_done: bool


def episode_folder(episode_id: str) -> str:
    """Where all objects of an episode lie."""
    try:
        found = uuid.UUID(episode_id)
    except ValueError as exc:
        raise UsageError(f"{episode_id!r} is no episode id") from exc
    return f"episodes/{shard_of(found)}/{found}/"


def plan_purge(catalog: Catalog, store: Store, episode_id: str) -> PurgePlan:
    """Look, change nothing.

    Raises:
        NotFoundError: No such episode.
    """
    objects = tuple(meta.key for meta in store.list(episode_folder(episode_id)))
    row = catalog.episode(episode_id)
    with catalog.transaction(f"reading the purge of {episode_id}") as connection:
        requested = connection.execute(
            sa.text("select 1 from kinemill.purge where episode_id = cast(:id as uuid)"), {"id": episode_id}
        ).scalar_one_or_none()
    return PurgePlan(episode_id, row.state, objects, tuple(catalog.manifests_of(episode_id)), requested is not None)


def purge(catalog: Catalog, store: Store, episode_id: str, *, reason: str, actor: str) -> PurgeReport:
    """Retire the episode for ever, empty its row, delete its objects.

    Run again, it deletes what came since, such as the object of a worker that had written it and was not yet told.

    Args:
        catalog: Where it is recorded, before anything is deleted.
        store: Where its objects lie.
        episode_id: Which.
        reason: Such as the number of the request; kept.
        actor: Who decided; kept.

    Raises:
        NotFoundError: No such episode.
        UnavailableError: Not all is deleted yet; run it again.
    """
    folder = episode_folder(episode_id)
    done = _record(catalog, episode_id, reason, actor)
    deleted = []
    for meta in list(store.list(folder)):
        store.delete(meta.key)
        deleted.append(meta.key)
    if done is not None and not deleted:
        return done
    left = [meta.key for meta in store.list(folder)]
    if left:
        raise UnavailableError(f"purge of {episode_id}: {left[0]} is still there ({len(left)} in all); run it again")
    with catalog.transaction(f"finishing the purge of {episode_id}") as connection:
        row = connection.execute(
            sa.text("""
                update kinemill.purge set completed_at = clock_timestamp(),
                    objects = (select coalesce(array_agg(distinct o order by o), '{}')
                               from unnest(objects || cast(:deleted as text[])) o),
                    manifests = manifests || cast(:later as text[])
                where episode_id = cast(:id as uuid) returning objects, manifests
            """),
            {"id": episode_id, "deleted": deleted, "later": _later_manifests(connection, episode_id)},
        ).one()
        _audit(connection, actor, "purge.completed", episode_id, {"objects": len(row.objects)})
    return PurgeReport(episode_id, tuple(row.objects), tuple(row.manifests), already_done=False)


def _record(catalog: Catalog, episode_id: str, reason: str, actor: str) -> PurgeReport | None:
    """Write down that it will be done; the report if it is done already."""
    with catalog.transaction(f"recording the purge of {episode_id}") as connection:
        values = {"id": episode_id}
        found = connection.execute(
            sa.text("select state, purged_at from kinemill.episode where id = cast(:id as uuid) for no key update"),
            values,
        ).one_or_none()
        if found is None:
            raise NotFoundError(f"no episode {episode_id} in the catalog")
        known = connection.execute(
            sa.text("select objects, manifests, completed_at from kinemill.purge where episode_id = cast(:id as uuid)"),
            values,
        ).one_or_none()
        if known is not None:
            if known.completed_at is None:
                return None
            named = [*known.manifests, *_later_manifests(connection, episode_id)]
            return PurgeReport(episode_id, tuple(known.objects), tuple(named), already_done=True)
        state = EpisodeState(found.state)
        for step in (EpisodeState.QUARANTINED, EpisodeState.RETIRED):
            # The machine has no way from every state to retired; through quarantine it always has.
            if state is not step and may_follow(state, step) and not may_follow(state, EpisodeState.RETIRED):
                state = _move(connection, episode_id, step)
        if state is not EpisodeState.RETIRED:
            state = _move(connection, episode_id, EpisodeState.RETIRED)
        connection.execute(
            sa.text("""
                update kinemill.episode set instruction = '', site = '', recorded_at = null, ended_at = null,
                    purged_at = clock_timestamp() where id = cast(:id as uuid)
            """),
            values,
        )
        connection.execute(
            sa.text("update kinemill.rendition set purged_at = clock_timestamp() where episode_id = cast(:id as uuid)"),
            values,
        )
        connection.execute(
            sa.text("""
                update kinemill.label set retracted_at = coalesce(retracted_at, clock_timestamp())
                where episode_id = cast(:id as uuid)
            """),
            values,
        )
        connection.execute(
            sa.text("""
                update kinemill.quality_result set message = '', evidence = '{}'
                where episode_id = cast(:id as uuid)
            """),
            values,
        )
        row = connection.execute(
            sa.text("""
                insert into kinemill.purge (episode_id, reason, actor, objects, manifests)
                select cast(:id as uuid), :reason, :actor,
                    (select coalesce(array_agg(object_key order by object_key), '{}') from kinemill.rendition
                     where episode_id = cast(:id as uuid)),
                    (select coalesce(array_agg(m.id order by m.number), '{}') from kinemill.manifest m
                     join kinemill.manifest_use u on u.manifest_number = m.number
                     where u.episode_id = cast(:id as uuid))
                returning objects, manifests
            """),
            {"id": episode_id, "reason": plain_text(reason, "reason"), "actor": plain_text(actor, "actor")},
        ).one()
        _audit(
            connection,
            actor,
            "purge.requested",
            episode_id,
            {"reason": reason, "objects": list(row.objects), "manifests": list(row.manifests)},
        )
    return None


def _later_manifests(connection: sa.Connection, episode_id: str) -> list[str]:
    """Manifests that hold it and were recorded after the purge was asked for, from an older snapshot."""
    known = connection.execute(
        sa.text("select manifests from kinemill.purge where episode_id = cast(:id as uuid)"), {"id": episode_id}
    ).scalar_one()
    return [one for one in manifests_of(connection, episode_id) if one not in set(known)]


def _move(connection: sa.Connection, episode_id: str, state: EpisodeState) -> EpisodeState:
    connection.execute(
        sa.text("update kinemill.episode set state = :state where id = cast(:id as uuid)"),
        {"id": episode_id, "state": state.value},
    )
    return state


def _audit(connection: sa.Connection, actor: str, action: str, subject: str, details: dict[str, object]) -> None:
    connection.execute(
        sa.text("""
            insert into kinemill.audit (actor, action, subject, details)
            values (:actor, :action, :subject, cast(:details as jsonb))
        """),
        {"actor": actor, "action": action, "subject": subject, "details": plain_json(details, "details")},
    )
