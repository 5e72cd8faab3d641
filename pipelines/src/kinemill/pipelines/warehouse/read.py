"""Reading the catalog's changes as Arrow: which outbox rows are safe, and what their episodes look like now.

**Why it cannot lose a row.** A row's `xid` is its transaction's. `pg_snapshot_xmin(pg_current_snapshot())` is the
oldest transaction still running, so every transaction below it has ended, and none that begins later gets a number
below it. Reading `xid < xmin` in order of (xid, seq) therefore never passes over a row that appears later; a long
open transaction holds the export back, and that is all it does. (A sequence or a timestamp promises no such thing:
both are taken before the commit.)
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from kinemill.errors import ExternalError, UnavailableError
from kinemill.pipelines.warehouse.schema import arrow_schema
from kinemill.pipelines.warehouse.watermark import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ChangeReader", "Span", "export_sql"]


@dataclass(frozen=True, slots=True)
class Span:
    """Outbox rows behind `first`, up to and with `last`; both (xid, seq)."""

    first: tuple[int, int]
    last: tuple[int, int]


_SQL = """
with due as materialized (
  select episode_id, max(seq) as seq from kinemill.outbox
  where (xid, seq) > ('{first_xid}'::xid8, {first_seq}) and (xid, seq) <= ('{last_xid}'::xid8, {last_seq})
  group by episode_id),
newest as materialized (
  select distinct on (q.episode_id, q.check_name, q.rendition_id)
    q.episode_id, q.check_name, q.score, q.passed, q.critical
  from kinemill.quality_result q left join kinemill.rendition r on r.id = q.rendition_id
  where q.episode_id in (select episode_id from due) and coalesce(r.current, true)
  order by q.episode_id, q.check_name, q.rendition_id, q.check_version desc),
quality as materialized (
  select episode_id, json_object_agg(check_name, score order by check_name)::text as scores,
    coalesce(bool_and(passed) filter (where critical), true) as passed,
    coalesce(array_agg(distinct check_name) filter (where not passed), '{{}}') as failed
  from newest group by episode_id),
label_sets as materialized (
  select episode_id, label_set, json_agg(label order by label) as labels from kinemill.label
  where retracted_at is null and episode_id in (select episode_id from due) group by episode_id, label_set),
labels as materialized (
  select episode_id, json_object_agg(label_set, labels order by label_set)::text as labels
  from label_sets group by episode_id),
parts as materialized (
  select g.rendition_id, array_agg(g.name order by lower(g.byte_range)) as names from kinemill.episode_group g
  join kinemill.rendition r on r.id = g.rendition_id
  where r.current and r.episode_id in (select episode_id from due) group by g.rendition_id)
select uuid_send(e.id) as episode_id, r.profile, due.seq, e.row_version, e.state,
  (r.purged_at is not null) as tombstone,
  v.name as vendor, e.vendor_key, coalesce(d.name, '') as delivery, b.name as robot, t.name as task, e.instruction,
  e.language, e.split, e.site, r.object_key, r.sha256, r.size_bytes, e.t_first_ns, e.duration_ns, e.frames, e.fps,
  e.frames_suspect, r.gop_frames, coalesce(p.names, '{{}}') as groups, s.topics, r.layout,
  coalesce(q.scores, '{{}}') as quality, coalesce(q.passed, true) as quality_passed,
  coalesce(q.failed, '{{}}') as failed_checks, coalesce(l.labels, '{{}}') as labels, e.degraded_steps, e.recorded_at,
  e.created_at as ingested_at, e.updated_at
from due
join kinemill.episode e on e.id = due.episode_id
join kinemill.rendition r on r.episode_id = e.id and r.current
join kinemill.vendor v on v.id = e.vendor_id
join kinemill.robot b on b.id = e.robot_id
join kinemill.task t on t.id = e.task_id
join kinemill.topic_set s on s.id = r.topic_set_id
left join kinemill.delivery d on d.id = e.delivery_id
left join quality q on q.episode_id = e.id
left join labels l on l.episode_id = e.id
left join parts p on p.rendition_id = r.id
"""


def export_sql(span: Span) -> str:
    """The statement that reads a span's episodes as they are now, in the columns of `schema.EPISODES`."""
    return _SQL.format(
        first_xid=int(span.first[0]),
        first_seq=int(span.first[1]),
        last_xid=int(span.last[0]),
        last_seq=int(span.last[1]),
    )


class ChangeReader:
    """An ADBC connection to the catalog.

    Args:
        url: libpq's.
    """

    def __init__(self, url: str) -> None:
        import adbc_driver_postgresql.dbapi as adbc

        with _adbc_errors():
            self._connection = adbc.connect(url, autocommit=True)

    def close(self) -> None:
        """Close it."""
        with contextlib.suppress(Exception):  # a connection that broke cannot be closed better
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def _one(self, sql: str) -> tuple[Any, ...] | None:
        with _adbc_errors(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            found = cursor.fetchone()
            return None if found is None else tuple(found)

    def identity(self) -> str:
        """Which catalog this is."""
        found = self._one("select id::text from kinemill.identity")
        assert found is not None  # noqa: S101 - the migration wrote it
        return str(found[0])

    def epoch(self) -> str:
        """Cluster, timeline and database: in another epoch, transaction ids and rows say nothing about this one's."""
        found = self._one("""
            select (select system_identifier from pg_control_system())::text || '/'
              || (select timeline_id from pg_control_checkpoint())::text || '/'
              || (select oid from pg_database where datname = current_database())::text
        """)
        assert found is not None  # noqa: S101 - one row by its form
        return str(found[0])

    def next_span(self, after: Watermark, limit: int) -> Span | None:
        """The next at most `limit` outbox rows that are safe to read; None where there is none."""
        first = (after.xid, after.seq)
        found = self._one(f"""
            select xid::text, seq from (
              select xid, seq from kinemill.outbox
              where (xid, seq) > ('{int(first[0])}'::xid8, {int(first[1])})
                and xid < pg_snapshot_xmin(pg_current_snapshot())
              order by xid, seq limit {int(limit)}) safe
            order by safe.xid desc, safe.seq desc limit 1
        """)  # noqa: S608 - integers
        return None if found is None else Span(first, (int(found[0]), int(found[1])))

    @contextlib.contextmanager
    def stream(self, sql: str) -> Iterator[pa.RecordBatchReader]:
        """The answer to any statement, as it comes."""
        with _adbc_errors(), self._connection.cursor() as cursor:
            cursor.execute(sql)
            yield cursor.fetch_record_batch()

    def batches(self, span: Span) -> Iterator[pa.RecordBatch]:
        """The span's episodes, one row a current rendition, in `arrow_schema()`."""
        import pyarrow as pa

        schema = arrow_schema()
        with _adbc_errors(), self._connection.cursor() as cursor:
            cursor.execute(export_sql(span))
            for batch in cursor.fetch_record_batch():
                columns = [
                    column if column.type.equals(field.type) else column.cast(field.type)
                    for column, field in zip(batch.columns, schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


@contextlib.contextmanager
def _adbc_errors() -> Iterator[None]:
    """The driver's errors as ours."""
    import adbc_driver_manager as adbc

    try:
        yield
    except adbc.Error as exc:
        text = " ".join(str(exc).split())[:400]
        state = getattr(exc, "sqlstate", None) or ""
        if state and state[:2] not in ("08", "53", "57", "40", "55"):
            raise ExternalError(f"reading the catalog's changes: {text}") from exc
        raise UnavailableError(f"reading the catalog's changes: {text}") from exc
    except OSError as exc:
        raise UnavailableError(f"reading the catalog's changes: {exc}") from exc
