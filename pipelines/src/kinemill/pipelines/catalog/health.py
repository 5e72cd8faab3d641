"""Is the catalog sound: its schema, its server's settings, its rows, and what it points at?"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import sqlalchemy as sa

from kinemill.contracts import EPISODE_TRANSITIONS, METRICS, Store
from kinemill.errors import NotFoundError
from kinemill.pipelines.catalog.api import Catalog
from kinemill.pipelines.catalog.purge import episode_folder

if TYPE_CHECKING:
    from kinemill.pipelines.warehouse.export import ExportLag
    from kinemill.pipelines.warehouse.target import IcebergTarget

__all__ = ["Health", "HealthFinding", "check_catalog", "export_metrics"]

_LAG_WARN_S = 600.0
"""A guess: ten export periods of a minute."""


class Health(enum.StrEnum):
    """How bad it is."""

    OK = "ok"
    WARN = "warn"
    """Works, but a fault would cost more than it needs to."""
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """What one check found."""

    check: str
    health: Health
    detail: str


def check_catalog(
    catalog: Catalog, *, store: Store | None = None, target: IcebergTarget | None = None, sample: int = 200
) -> list[HealthFinding]:
    """Look, change nothing.

    Args:
        catalog: The catalog.
        store: Also see whether `sample` renditions lie there, in size and etag as recorded, and nothing of what was
            withdrawn.
        target: Also see how far the warehouse is behind, and compare it row by row.
        sample: How many renditions, chosen at random.
    """
    status = catalog.status()
    if not status.up_to_date:
        stands = status.current or "nothing"
        detail = f"stands at {stands}, this program needs {status.head}: run `kinemill catalog upgrade`"
        return [HealthFinding("schema", Health.FAIL, detail)]
    found = [HealthFinding("schema", Health.OK, f"{status.head} on PostgreSQL {status.postgres}")]
    found += _settings(catalog)
    found += _guards(catalog)
    found += _rows(catalog)
    if store is not None:
        found.append(_objects(catalog, store, sample))
        found.append(_withdrawn(catalog, store))
    if target is not None:
        found += _warehouse(catalog, target)
    return found


def _settings(catalog: Catalog) -> Iterator[HealthFinding]:
    with catalog.transaction("reading the server's settings") as connection:
        value = {
            str(row[0]): str(row[1])
            for row in connection.execute(
                sa.text("""
                    select name, setting from pg_settings where name in ('fsync', 'full_page_writes', 'data_checksums',
                        'synchronous_commit', 'archive_mode')
                """)
            )
        }
        archiver = connection.execute(
            sa.text("""
                select last_failed_wal, last_failed_time > coalesce(last_archived_time, '-infinity') as failing
                from pg_stat_archiver
            """)
        ).one()
    off = [name for name in ("fsync", "full_page_writes", "synchronous_commit") if value[name] == "off"]
    if off:
        yield HealthFinding("durability", Health.FAIL, f"{', '.join(off)} off: a power cut can lose committed rows")
    else:
        yield HealthFinding("durability", Health.OK, "a commit survives a power cut")
    if value["data_checksums"] != "on":
        yield HealthFinding("checksums", Health.WARN, "data checksums off: a rotten disk page is served as data")
    else:
        yield HealthFinding("checksums", Health.OK, "pages are checked when read")
    if value["archive_mode"] == "off":
        yield HealthFinding("archive", Health.WARN, "log not archived: a lost machine loses what no backup holds")
    elif archiver.failing:
        yield HealthFinding("archive", Health.FAIL, f"archiving fails since {archiver.last_failed_wal}")
    else:
        yield HealthFinding("archive", Health.OK, "the log is archived")


_KEPT = "keep keep_all keep_as_is"
_GUARDS = {
    "audit": _KEPT,
    "delivery": _KEPT,
    "episode": "fit_to_publish guard keep keep_all outbox_insert outbox_update",
    "episode_group": _KEPT,
    "identity": _KEPT,
    "label": "keep keep_all keep_identity touch_insert touch_update",
    "manifest": _KEPT,
    "manifest_use": _KEPT,
    "purge": "keep keep_all keep_identity",
    "quality_result": "fit_to_publish keep keep_all keep_identity touch_insert touch_update",
    "quarantine": "keep keep_all keep_identity",
    "rendition": "fit_to_publish guard keep keep_all keep_layout touch_insert touch_update",
    "rendition_receipt": _KEPT,
    "run": "keep keep_all keep_identity",
    "run_step": "keep keep_all keep_identity keep_result",
    "topic_set": _KEPT,
}
"""Table to its triggers, all of them."""


def _guards(catalog: Catalog) -> Iterator[HealthFinding]:
    """Triggers can be switched off, and are by some restore tools; then nothing holds any more."""
    with catalog.transaction("reading the guards") as connection:
        triggers = set(
            connection.execute(
                sa.text("""
                    select c.relname || '.' || t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
                    join pg_namespace n on n.oid = c.relnamespace
                    where n.nspname = 'kinemill' and not t.tgisinternal and t.tgenabled in ('O', 'A')
                """)
            ).scalars()
        )
        moves = {
            (row[0], row[1])
            for row in connection.execute(sa.text("select old_state, new_state from kinemill.episode_transition"))
        }
        unchecked = list(
            connection.execute(
                sa.text("""
                    select conname from pg_constraint c join pg_namespace n on n.oid = c.connamespace
                    where n.nspname = 'kinemill' and not c.convalidated
                """)
            ).scalars()
        )
    wanted = {f"{table}.{name}" for table, names in _GUARDS.items() for name in names.split()}
    if missing := sorted(wanted - triggers):
        detail = f"missing or switched off: {', '.join(missing)}; changes since then are not trustworthy"
        yield HealthFinding("guards", Health.FAIL, detail)
    elif moves != {(a.value, b.value) for a, b in EPISODE_TRANSITIONS}:
        yield HealthFinding("guards", Health.FAIL, "the table of state transitions is not the contract's")
    elif unchecked:
        yield HealthFinding("guards", Health.WARN, f"constraints never validated: {', '.join(unchecked)}")
    else:
        yield HealthFinding("guards", Health.OK, f"{len(triggers)} triggers and the state machine in place")


_INVARIANTS = {
    "published episodes with an object that was never read back": """
        select count(*) from kinemill.episode e join kinemill.rendition r on r.episode_id = e.id and r.current
        where e.state = 'published' and r.verified_at is null""",
    "published episodes without a critical check passed": """
        select count(*) from kinemill.episode e where e.state = 'published' and not exists (
            select from kinemill.quality_result q where q.episode_id = e.id and q.critical and q.passed)""",
    "episodes without a current rendition": """
        select count(*) from kinemill.episode e where not exists (
            select from kinemill.rendition r where r.episode_id = e.id and r.current)""",
    "renditions without a receipt": """
        select count(*) from kinemill.rendition r where not exists (
            select from kinemill.rendition_receipt c where c.rendition_id = r.id)""",
    "renditions without a topic group": """
        select count(*) from kinemill.rendition r where not exists (
            select from kinemill.episode_group g where g.rendition_id = r.id)""",
    "purged episodes that are not retired": """
        select count(*) from kinemill.episode where purged_at is not null and state <> 'retired'""",
}


def _rows(catalog: Catalog) -> Iterator[HealthFinding]:
    with catalog.transaction("checking rows") as connection:
        bad = {text: int(connection.execute(sa.text(sql)).scalar_one()) for text, sql in _INVARIANTS.items()}
        open_purges = int(
            connection.execute(sa.text("select count(*) from kinemill.purge where completed_at is null")).scalar_one()
        )
    wrong = [f"{count} {text}" for text, count in bad.items() if count]
    if wrong:
        yield HealthFinding("rows", Health.FAIL, "; ".join(wrong))
    else:
        yield HealthFinding("rows", Health.OK, f"{len(bad)} invariants hold")
    if open_purges:
        yield HealthFinding("purges", Health.FAIL, f"{open_purges} asked for and not finished: run them again")


def _objects(catalog: Catalog, store: Store, sample: int) -> HealthFinding:
    with catalog.transaction("choosing renditions") as connection:
        rows = connection.execute(
            sa.text("""
                select object_key, size_bytes, etag from kinemill.rendition where purged_at is null
                order by random() limit :sample
            """),
            {"sample": sample},
        ).all()
    wrong = []
    for row in rows:
        try:
            meta = store.head(row.object_key)
        except NotFoundError:
            wrong.append(f"{row.object_key} is not there")
            continue
        if meta.size_bytes != row.size_bytes or (row.etag is not None and meta.etag != row.etag):
            wrong.append(f"{row.object_key} is another object")
    if wrong:
        return HealthFinding("objects", Health.FAIL, f"{len(wrong)} of {len(rows)}: {'; '.join(wrong[:3])}")
    return HealthFinding("objects", Health.OK, f"{len(rows)} looked at, all as recorded")


def _withdrawn(catalog: Catalog, store: Store) -> HealthFinding:
    """An object that a worker wrote while its episode was purged is known to nobody else."""
    with catalog.transaction("reading finished purges") as connection:
        ids = list(
            connection.execute(
                sa.text("select episode_id::text from kinemill.purge where completed_at is not null order by 1")
            ).scalars()
        )
    left = [one for one in ids if next(iter(store.list(episode_folder(one))), None) is not None]
    if left:
        detail = f"{len(left)} withdrawn episodes have objects again, the first is {left[0]}: purge them again"
        return HealthFinding("withdrawn", Health.FAIL, detail)
    return HealthFinding("withdrawn", Health.OK, f"{len(ids)} withdrawn episodes have no object")


def _warehouse(catalog: Catalog, target: IcebergTarget) -> Iterator[HealthFinding]:
    from kinemill.pipelines.warehouse.export import export_lag
    from kinemill.pipelines.warehouse.reconcile import reconcile

    lag = export_lag(catalog, target.watermark())
    held = f", held back by {lag.held_by[0]}" if lag.held_by else ""
    health = Health.WARN if lag.seconds > _LAG_WARN_S else Health.OK
    yield HealthFinding("lag", health, f"{lag.rows} changes behind, the oldest {lag.seconds:.0f} s old{held}")
    report = reconcile(catalog, target)
    if report.ok:
        yield HealthFinding("warehouse", Health.OK, f"{report.catalog_rows} renditions agree, {report.pending} pending")
        return
    first = "; ".join(f"{d.episode_id} {d.profile} {d.kind} {d.detail}".strip() for d in report.shown[:3])
    yield HealthFinding("warehouse", Health.FAIL, f"{report.differences} renditions differ: {first}")


def export_metrics(lag: ExportLag) -> str:
    """Prometheus text for the textfile collector; the alert on it stands in `alerts.yml` beside this module."""
    name = "kinemill_export_lag_seconds"
    metric = METRICS[name]
    return f"# HELP {name} {metric.help}\n# TYPE {name} {metric.kind}\n{name} {lag.seconds:.3f}\n"
