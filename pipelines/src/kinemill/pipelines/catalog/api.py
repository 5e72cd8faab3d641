"""The catalog for the rest of the pipelines: a few calls, each one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import sqlalchemy as sa

from kinemill.contracts import EpisodeState, QuarantineRecord, Rendition, RunStatus, StepResult
from kinemill.errors import ConflictError, CorruptError, NotFoundError
from kinemill.pipelines.catalog import manifests, reading, schema, steps, verdicts
from kinemill.pipelines.catalog import register as _register
from kinemill.pipelines.catalog.database import catalog_url, connect_engine, public_url, translated
from kinemill.pipelines.catalog.records import (
    EpisodeCard,
    EpisodeRow,
    LabelRecord,
    ManifestRecord,
    QualityRecord,
    Registered,
    StepClaim,
    plain_json,
    plain_text,
)

__all__ = ["Catalog"]

_log = logging.getLogger(__name__)


class Catalog:
    """The system of record.

    ::

        with Catalog(url) as catalog:
            delivery = catalog.register_delivery("acme", "2026-11-drop")
            done = catalog.register_episodes(pairs, delivery_id=delivery, batch="acme-7")

    Every method is one transaction and may be called again after a failure: what was done is found done.
    Thread-safe; after a fork open a new one.

    Args:
        url: `postgresql://user@host/database`; None means the environment's KINEMILL_CATALOG_URL. A password
            belongs into PGPASSFILE or PGPASSWORD.

    Raises:
        UnavailableError: Each method may: the server is down, restarts, or a lock was not had in time.
        DataError: Each method may: a value that no row can hold.
    """

    def __init__(self, url: str | None = None, *, pool_size: int = 5) -> None:
        self._url = catalog_url(url)
        self.engine = connect_engine(self._url, pool_size=pool_size)

    @property
    def url(self) -> str:
        """Without a password."""
        return public_url(self._url)

    @property
    def libpq_url(self) -> str:
        """As given, for other drivers; may hold a password, so never log it."""
        return self._url

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    @contextmanager
    def transaction(self, what: str) -> Iterator[sa.Connection]:
        """A transaction whose errors read as kinemill's; `what` begins the message."""
        with translated(what), self.engine.begin() as connection:
            yield connection

    def upgrade(self) -> schema.SchemaStatus:
        """Create the schema or bring it up to date."""
        return schema.upgrade(self.engine)

    def status(self) -> schema.SchemaStatus:
        """What the schema stands at."""
        return schema.schema_status(self.engine)

    # ---- deliveries and episodes

    def register_delivery(
        self,
        vendor: str,
        name: str,
        *,
        source_url: str = "",
        files: int = 0,
        size_bytes: int = 0,
        sha256: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> int:
        """Note a drop; its id. The same vendor and name again give the same id.

        Args:
            vendor: Its name; made known if new.
            name: Unique per vendor.
            source_url: Where it lies.
            files: How many.
            size_bytes: In all.
            sha256: Over its list of files, hex.
            details: Whatever else is known, as JSON.

        Raises:
            ConflictError: It is known with another sha256: a drop never changes, name it anew.
        """
        with self.transaction(f"delivery {vendor}/{name}") as connection:
            connection.execute(
                sa.text("insert into kinemill.vendor (name) values (:name) on conflict do nothing"),
                {"name": plain_text(vendor, "vendor")},
            )
            connection.execute(
                sa.text("""
                    insert into kinemill.delivery (vendor_id, name, source_url, files, size_bytes, sha256, details)
                    select id, :name, :source_url, :files, :size_bytes, :sha256, cast(:details as jsonb)
                    from kinemill.vendor where name = :vendor on conflict do nothing
                """),
                {
                    "vendor": vendor,
                    "name": plain_text(name, "delivery name"),
                    "source_url": plain_text(source_url, "source_url"),
                    "files": files,
                    "size_bytes": size_bytes,
                    "sha256": bytes.fromhex(sha256) if sha256 else None,
                    "details": plain_json(details or {}, "details"),
                },
            )
            row = connection.execute(
                sa.text("""
                    select d.id, d.sha256 from kinemill.delivery d join kinemill.vendor v on v.id = d.vendor_id
                    where v.name = :vendor and d.name = :name
                """),
                {"vendor": vendor, "name": name},
            ).one()
            if sha256 is not None and row.sha256 is not None and bytes(row.sha256).hex() != sha256:
                raise ConflictError(f"delivery {vendor}/{name} is known with other content; a drop never changes")
            return int(row.id)

    def register_episodes(
        self,
        pairs: Sequence[tuple[EpisodeCard, Rendition]],
        *,
        delivery_id: int | None = None,
        batch: str = "",
        verified: bool = False,
        quality: Sequence[QualityRecord] = (),
        labels: Sequence[LabelRecord] = (),
    ) -> list[Registered]:
        """Register renditions and, where new, their episodes; all of them or none.

        A handful of statements whatever the number of pairs; 1,000 a call is a good size. The objects must lie
        in the store already. State after it: `ingested`.

        Args:
            pairs: What is known beside the bytes, and the rendition with its receipt.
            delivery_id: The drop they came with.
            batch: The batch that made them.
            verified: The objects were read back whole and their sha256 matched (each rendition then needs its etag).
                A correction of a published episode must be, since nothing unverified is ever published.
            quality: Written in the same transaction.
            labels: Written in the same transaction.

        Returns:
            One outcome a pair, in order.

        Raises:
            DataError: A pair contradicts itself: key and content, ids, times, groups outside the file.
        """
        with self.transaction(f"registering {len(pairs)} episodes") as connection:
            done = _register.register(connection, pairs, delivery_id=delivery_id, batch=batch, verified=verified)
            verdicts.record_quality(connection, quality)
            verdicts.record_labels(connection, labels)
            return done

    def mark_verified(
        self, etags: Mapping[str, str], *, sizes: Mapping[str, int] | None = None, moved: bool = False
    ) -> int:
        """Note that objects were read back whole and their sha256 matched.

        Nothing is ever overwritten, so an object that has another etag than the recorded one is another object, or lies
        in another store.

        Args:
            etags: Object key to the store's etag.
            sizes: Object key to bytes as the store says, compared with the receipt's.
            moved: The objects were copied to another store, which gives them other etags: take these, and log it.

        Raises:
            NotFoundError: A key that no rendition has.
            CorruptError: A size that is not the receipt's.
            ConflictError: Another etag than the recorded one, and not `moved`. Nothing was marked.
        """
        named = {"keys": list(etags), "etags": list(etags.values())}
        with self.transaction("marking objects verified") as connection:
            rows = connection.execute(
                sa.text("""
                    select object_key, size_bytes, etag from kinemill.rendition
                    where object_key = any(cast(:keys as text[])) and purged_at is null order by id for no key update
                """),
                {"keys": named["keys"]},
            ).all()
            if missing := set(etags) - {row.object_key for row in rows}:
                raise NotFoundError(f"no rendition has the key {min(missing)} ({len(missing)} in all)")
            for row in rows:
                if sizes is not None and sizes.get(row.object_key, row.size_bytes) != row.size_bytes:
                    raise CorruptError(
                        f"{row.object_key}: {sizes[row.object_key]} bytes in the store, not {row.size_bytes}"
                    )
            changed = [row for row in rows if row.etag is not None and row.etag != etags[row.object_key]]
            for row in changed:
                text = f"{row.object_key}: recorded with etag {row.etag}, now {etags[row.object_key]}"
                if not moved:
                    raise ConflictError(
                        f"{text} ({len(changed)} in all): another object lies there, or it was written again; find out "
                        "who did. Where the whole corpus was copied to another store, pass moved=True"
                    )
                _log.warning("%s: taken over, as of a moved corpus", text)
            connection.execute(
                sa.text("""
                    update kinemill.rendition r set verified_at = coalesce(r.verified_at, clock_timestamp()),
                        etag = u.etag
                    from unnest(cast(:keys as text[]), cast(:etags as text[])) u (key, etag)
                    where r.object_key = u.key and r.purged_at is null
                """),
                named,
            )
            return len(rows)

    def set_state(
        self,
        episode_ids: Iterable[str],
        state: EpisodeState,
        *,
        row_versions: Mapping[str, int] | None = None,
    ) -> dict[str, int]:
        """Move episodes to `state`; those already there stay as they are.

        Args:
            episode_ids: Which.
            state: Where to.
            row_versions: Episode id to the version that the caller saw (optimistic locking); None means any.

        Returns:
            Episode id to its row version now.

        Raises:
            NotFoundError: An unknown episode.
            ConflictError: Somebody changed one since `row_versions` were read; nothing was changed.
            StateError: A move that the state machine forbids, or an episode that is not fit to be published.
        """
        ids = sorted(set(episode_ids))
        with self.transaction(f"moving {len(ids)} episodes to {state.value}") as connection:
            rows = connection.execute(
                sa.text("""
                    select id::text as id, row_version, state from kinemill.episode where id = any(cast(:ids as uuid[]))
                    order by id for no key update
                """),
                {"ids": ids},
            ).all()
            if missing := set(ids) - {row.id for row in rows}:
                raise NotFoundError(f"no episode {min(missing)} ({len(missing)} in all)")
            if row_versions is not None:
                for row in rows:
                    if row.id in row_versions and row_versions[row.id] != row.row_version:
                        raise ConflictError(
                            f"episode {row.id} is at version {row.row_version},"
                            f" not {row_versions[row.id]}: read it again"
                        )
            connection.execute(
                sa.text(
                    "update kinemill.episode set state = :state"
                    " where id = any(cast(:ids as uuid[])) and state <> :state"
                ),
                {"ids": ids, "state": state.value},
            )
            return {row.id: row.row_version + (row.state != state.value) for row in rows}

    # ---- what gates and people say

    def record_quality(self, results: Sequence[QualityRecord]) -> None:
        """Write check results; the same check and version again replaces its result."""
        with self.transaction(f"recording {len(results)} quality results") as connection:
            verdicts.record_quality(connection, results)

    def record_labels(self, labels: Sequence[LabelRecord]) -> None:
        """Write labels; the same label again replaces its score, and un-retracts it."""
        with self.transaction(f"recording {len(labels)} labels") as connection:
            verdicts.record_labels(connection, labels)

    def retract_labels(self, labels: Sequence[LabelRecord]) -> int:
        """Take labels back; they stay in the record, marked."""
        with self.transaction(f"retracting {len(labels)} labels") as connection:
            return verdicts.retract_labels(connection, labels)

    def record_quarantine(self, found: Sequence[QuarantineRecord]) -> int:
        """Note what was put aside and why; the same finding again is no new row. How many were new."""
        if not found:
            return 0
        with self.transaction(f"recording {len(found)} quarantined items") as connection:
            return verdicts.record_quarantine(connection, found)

    # ---- runs and steps

    def open_run(self, batch: str, *, delivery_id: int | None = None, plan: Mapping[str, Any] | None = None) -> int:
        """Begin, or resume, the run of a batch; its id. An empty plan keeps the one that was saved."""
        with self.transaction(f"opening the run of {batch}") as connection:
            return steps.open_run(connection, batch, delivery_id, plan or {})

    def close_run(self, batch: str, *, non_critical: Sequence[str] = ()) -> RunStatus:
        """End a run by what its steps say; failed non-critical ones are noted on the batch's episodes."""
        with self.transaction(f"closing the run of {batch}") as connection:
            return steps.close_run(connection, batch, non_critical)

    def run_status(self, batch: str) -> RunStatus | None:
        """How a run stands; None where there is none."""
        with self.transaction(f"reading the run of {batch}") as connection:
            return steps.run_status(connection, batch)

    def claim_step(
        self, batch: str, step: str, step_version: int, input_digest: str, *, by: str = "", lease_s: float = 3600.0
    ) -> StepClaim | None:
        """The right to execute a step on an input; None where it is done or another worker holds it.

        A claim whose lease ended, and a step that failed, can be claimed again.
        """
        with self.transaction(f"claiming step {step} of {batch}") as connection:
            return steps.claim(connection, StepClaim(batch, step, step_version, input_digest), by=by, lease_s=lease_s)

    def renew_step(self, held: StepClaim, *, lease_s: float = 3600.0) -> None:
        """Extend a lease.

        Raises:
            ConflictError: It ended and another worker took the step.
        """
        with self.transaction(f"renewing step {held.step} of {held.batch}") as connection:
            steps.renew(connection, held, lease_s)

    def finish_step(self, held: StepClaim, result: StepResult) -> None:
        """Write a claimed step's result.

        Raises:
            ConflictError: The lease ended and another worker took the step; the result does not count.
        """
        with self.transaction(f"finishing step {held.step} of {held.batch}") as connection:
            steps.finish(connection, held, result)

    def record_step(self, result: StepResult) -> bool:
        """Write a result without a claim; False where the step was done or is claimed."""
        with self.transaction(f"recording step {result.step} of {result.batch}") as connection:
            return steps.record(connection, result)

    def step_done(self, batch: str, step: str, step_version: int, input_digest: str) -> StepResult | None:
        """The result, if exactly this step, in this version, was done on exactly this input."""
        with self.transaction(f"reading step {step} of {batch}") as connection:
            return steps.done(connection, StepClaim(batch, step, step_version, input_digest))

    def steps(self, batch: str) -> list[StepResult]:
        """All finished steps of a batch, in the order they began."""
        with self.transaction(f"reading the steps of {batch}") as connection:
            return steps.steps(connection, batch)

    # ---- manifests

    def record_manifest(self, manifest: ManifestRecord, episode_ids: Iterable[str | bytes]) -> bool:
        """Note a published manifest and which episodes it holds (by COPY, so millions are fine).

        Returns:
            False where it was recorded before.

        Raises:
            ConflictError: Another manifest has this id.
            DataError: An episode that the catalog does not know.
        """
        with self.transaction(f"recording manifest {manifest.id}") as connection:
            return manifests.record(connection, manifest, episode_ids)

    def manifests_of(self, episode_id: str) -> list[str]:
        """Ids of the manifests that hold an episode."""
        with self.transaction(f"reading the manifests of {episode_id}") as connection:
            return manifests.manifests_of(connection, episode_id)

    def withdrawn_in(self, manifest_id: str) -> dict[str, str]:
        """Episodes of a manifest that are retired or purged: id to `retired` or `purged`."""
        with self.transaction(f"reading manifest {manifest_id}") as connection:
            return manifests.withdrawn_in(connection, manifest_id)

    # ---- reading

    def episode(self, episode_id: str) -> EpisodeRow:
        """One episode.

        Raises:
            NotFoundError: The catalog does not know it.
        """
        found = self.episodes(ids=[episode_id])
        if not found:
            raise NotFoundError(f"no episode {episode_id} in the catalog")
        return found[0]

    def episodes(
        self,
        *,
        ids: Sequence[str] | None = None,
        batch: str | None = None,
        state: EpisodeState | None = None,
        after: str | None = None,
        limit: int = 10_000,
    ) -> list[EpisodeRow]:
        """Episodes in order of id; page on with `after`."""
        with self.transaction("reading episodes") as connection:
            return reading.episodes(connection, ids=ids, batch=batch, state=state, after=after, limit=limit)

    def find(self, vendor: str, vendor_keys: Sequence[str]) -> dict[str, str]:
        """Vendor key to episode id, for those that the catalog knows."""
        with self.transaction(f"looking up {len(vendor_keys)} episodes of {vendor}") as connection:
            return reading.find(connection, vendor, vendor_keys)

    def renditions(self, episode_ids: Sequence[str], *, all_versions: bool = False) -> list[Rendition]:
        """Renditions with their receipts, current ones unless `all_versions`; in order of episode and profile."""
        with self.transaction("reading renditions") as connection:
            return reading.renditions(connection, episode_ids, all_versions=all_versions)

    def quarantined(self, *, batch: str | None = None, limit: int = 10_000) -> list[QuarantineRecord]:
        """What was put aside and not resolved, oldest first."""
        with self.transaction("reading the quarantine") as connection:
            return verdicts.quarantined(connection, batch=batch, limit=limit)

    def counts(self) -> dict[str, int]:
        """Episodes by state, and the other tables' sizes."""
        with self.transaction("counting") as connection:
            return reading.counts(connection)
