"""Do catalog and warehouse agree? Compared row by row, so that a bug in the export cannot hide behind its counters."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.schema import arrow_schema
from kinemill.pipelines.warehouse.target import IcebergTarget
from kinemill.pipelines.warehouse.watermark import Watermark

if TYPE_CHECKING:
    from kinemill.pipelines.catalog.api import Catalog

__all__ = ["Difference", "ReconcileReport", "entomb", "reconcile"]

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Difference:
    """One rendition that the two sides know differently."""

    episode_id: str
    profile: str
    kind: str
    """`missing` or `superseded` in the warehouse, `unknown` to the catalog, `repeated` in the warehouse."""
    detail: str


@dataclass(frozen=True, slots=True)
class ReconcileReport:
    """What a comparison found."""

    catalog_rows: int
    """Renditions compared; those with changes that are not exported yet are left out."""
    warehouse_rows: int
    """Current rows in the warehouse."""
    pending: int
    """Episodes left out: they have changes that are not exported yet."""
    differences: int
    shown: tuple[Difference, ...]
    """The first few."""

    @property
    def ok(self) -> bool:
        """True where the two sides agree."""
        return self.differences == 0


_CATALOG = """
select uuid_send(e.id) as episode_id, r.profile, e.row_version, e.state, (r.purged_at is not null) as tombstone,
  r.sha256
from kinemill.episode e join kinemill.rendition r on r.episode_id = e.id and r.current
where not exists (select from kinemill.outbox o where o.episode_id = e.id and (o.xid, o.seq) > ('{xid}'::xid8, {seq}))
"""

_PENDING = """
select distinct uuid_send(episode_id) as episode_id from kinemill.outbox where (xid, seq) > ('{xid}'::xid8, {seq})
"""

_COMPARE = """
with newest as (
  select * from warehouse qualify row_number() over (partition by episode_id, profile order by seq desc) = 1),
w as (select * from newest where episode_id not in (select episode_id from pending)),
repeated as (
  select episode_id, profile, count(*) - 1 as more from warehouse group by episode_id, profile, seq having count(*) > 1)
select coalesce(c.episode_id, w.episode_id) as episode_id, coalesce(c.profile, w.profile) as profile,
  case when w.episode_id is null then 'missing' when c.episode_id is null then 'unknown' else 'superseded' end as kind,
  concat_ws(', ',
    case when c.row_version <> w.row_version then 'version ' || c.row_version || ', warehouse ' || w.row_version end,
    case when c.state <> w.state then 'state ' || c.state || ', warehouse ' || w.state end,
    case when c.tombstone <> w.tombstone then 'purged on one side only' end,
    case when c.sha256 <> w.sha256 then 'another object' end) as detail
from catalog c full join w on c.episode_id = w.episode_id and c.profile = w.profile
where (c.episode_id is null and not w.tombstone) or w.episode_id is null
  or (c.row_version, c.state, c.tombstone, c.sha256) is distinct from (w.row_version, w.state, w.tombstone, w.sha256)
    and c.episode_id is not null
union all
select episode_id, profile, 'repeated', more || ' rows too many of one version' from repeated
"""


def reconcile(catalog: Catalog, target: IcebergTarget) -> ReconcileReport:
    """Compare every rendition that is exported; changes nothing.

    Rows that a restore lost (the warehouse knows them, the catalog does not) are `unknown`; `entomb` marks them, so
    that no new manifest takes them.
    """
    import duckdb

    stand = target.watermark() or Watermark("", 0, 0)
    values = {"xid": int(stand.xid), "seq": int(stand.seq)}
    with ChangeReader(catalog.libpq_url) as reader, duckdb.connect() as engine:
        # Read as Arrow, compared by DuckDB, which spills to disk where millions of rows do not fit.
        for name, sql in (("catalog", _CATALOG), ("pending", _PENDING)):
            with reader.stream(sql.format(**values)) as rows:
                engine.register("incoming", rows)
                engine.execute(f"create temp table {name} as select * from incoming")  # noqa: S608 - a constant
                engine.unregister("incoming")
        columns = ("episode_id", "profile", "seq", "row_version", "state", "tombstone", "sha256")
        engine.register("incoming", target.scan(columns))
        engine.execute("create temp table warehouse as select * from incoming")
        engine.unregister("incoming")
        engine.execute(f"create temp table differences as {_COMPARE}")
        shown = engine.execute(
            f"select lower(hex(episode_id)), profile, kind, detail from differences order by 1, 2, 3 limit {_SHOWN}"  # noqa: S608
        ).fetchall()
        counts = engine.execute("""
            select (select count(*) from catalog), (select count(distinct (episode_id, profile)) from warehouse),
              (select count(*) from pending), (select count(*) from differences)
        """).fetchone()
    assert counts is not None  # noqa: S101 - one row by its form
    return ReconcileReport(
        catalog_rows=counts[0],
        warehouse_rows=counts[1],
        pending=counts[2],
        differences=counts[3],
        shown=tuple(Difference(_uuid(row[0]), row[1], row[2], row[3]) for row in shown),
    )


def entomb(catalog: Catalog, target: IcebergTarget) -> int:
    """Append a tombstone for every rendition that the warehouse offers and the catalog no longer knows; how many.

    For after a restore: such episodes were registered after the backup's last moment. Their objects are still in the
    store, and `catalog rebuild --from-store` brings them back with the state `ingested`.
    """
    import duckdb
    import sqlalchemy as sa

    stand = target.watermark()
    if stand is None:
        return 0
    with catalog.transaction("numbering tombstones") as connection:
        seq = connection.execute(
            sa.text("select nextval(pg_get_serial_sequence('kinemill.outbox', 'seq'))")
        ).scalar_one()
    schema = arrow_schema()
    with ChangeReader(catalog.libpq_url) as reader, duckdb.connect() as engine:
        with reader.stream("select distinct uuid_send(episode_id) as episode_id from kinemill.rendition") as rows:
            engine.register("incoming", rows)
            engine.execute("create temp table known as select * from incoming")
            engine.unregister("incoming")
        engine.register("warehouse", target.scan(tuple(schema.names)))
        columns = ", ".join(
            {"seq": f"{int(seq)}::bigint as seq", "state": "'retired' as state", "tombstone": "true as tombstone"}.get(
                n, n
            )
            for n in schema.names
        )
        lost = engine.execute(f"""
            select {columns} from warehouse
            qualify row_number() over (partition by episode_id, profile order by seq desc) = 1 and not tombstone
                and episode_id not in (select episode_id from known)
        """).to_arrow_table()  # noqa: S608 - the schema's own names
    if lost.num_rows == 0:
        return 0
    return target.append(lost.cast(schema).to_batches(), stand, after=stand)


def _uuid(digits: str) -> str:
    return str(uuid.UUID(digits))
