"""From the catalog to the warehouse, exactly once: one span of changes, one commit, again."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from kinemill.errors import ConflictError, UnavailableError
from kinemill.pipelines.catalog.database import translated
from kinemill.pipelines.warehouse.read import ChangeReader, Span
from kinemill.pipelines.warehouse.target import ExportTarget
from kinemill.pipelines.warehouse.watermark import Watermark

if TYPE_CHECKING:
    import pyarrow as pa

    from kinemill.pipelines.catalog.api import Catalog

__all__ = ["ExportLag", "ExportReport", "Exporter", "export_lag", "only_exporter"]

_log = logging.getLogger(__name__)
_LOCK = 0x6B6D6578706F7274  # "kmexport"
_AHEAD = 4
_KEEP_OUTBOX = "7 days"


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What one call of `Exporter.run` did."""

    rows: int
    """Rows added to the warehouse."""
    commits: int
    seconds: float
    resynced: bool
    """The epoch was another (a restore, a promotion, or a new warehouse): all episodes were sent again."""
    watermark: Watermark | None


@dataclass(frozen=True, slots=True)
class ExportLag:
    """How far the warehouse is behind."""

    rows: int
    """Outbox rows not exported yet."""
    seconds: float
    """Age of the oldest one, by the database's clock; never negative."""
    held_by: tuple[str, ...]
    """Open transactions that hold the export back: pid, age, program; oldest first."""


@contextlib.contextmanager
def only_exporter(catalog: Catalog) -> Iterator[sa.Connection]:
    """Keep all other exporters of this catalog out; yields the session that holds the lock.

    Raises:
        ConflictError: Another one is at work.
    """
    with translated("the export's lock"), catalog.engine.connect() as session:
        lock = session.execution_options(isolation_level="AUTOCOMMIT")
        if not lock.execute(sa.text("select pg_try_advisory_lock(:key)"), {"key": _LOCK}).scalar_one():
            raise ConflictError("another exporter of this catalog is at work")
        try:
            yield lock
        finally:
            # A broken session has lost its lock already.
            if not lock.invalidated:
                lock.execute(sa.text("select pg_advisory_unlock(:key)"), {"key": _LOCK})


class Exporter:
    """Exports a catalog to a target.

    Args:
        catalog: Read from; its outbox is pruned of what was exported long ago.
        target: Written to.
        batch_rows: Outbox rows per commit.
        on_step: Called with the name of each step boundary (`locked`, `begun`, `resynced`, `bounded`, `written`,
            `committed`, `pruned`): tests kill the process there.
    """

    def __init__(
        self,
        catalog: Catalog,
        target: ExportTarget,
        *,
        batch_rows: int = 1_000_000,
        on_step: Callable[[str], None] | None = None,
    ) -> None:
        self._catalog = catalog
        self._target = target
        self._batch_rows = batch_rows
        self._on_step = on_step or (lambda _: None)
        self.committed = 0
        """Rows that all runs of this exporter added to the warehouse, also one that an error ended."""

    def run(self, *, max_commits: int | None = None) -> ExportReport:
        """Export everything that is safe to read now, and return.

        Raises:
            ConflictError: Another exporter of this catalog is at work.
            UnavailableError: Database or store is gone; run it again, nothing is lost or doubled.
        """
        start = time.monotonic()
        with only_exporter(self._catalog) as lock:
            self._on_step("locked")
            return self._locked(lock, start, max_commits)

    def _locked(self, lock: sa.Connection, start: float, max_commits: int | None) -> ExportReport:
        rows = commits = 0
        with ChangeReader(self._catalog.libpq_url) as reader:
            stand, resynced = self._begin(reader)
            self._on_step("begun")
            at: Watermark = Watermark(reader.epoch(), 0, 0) if stand is None or resynced else stand
            while max_commits is None or commits < max_commits:
                span = reader.next_span(at, self._batch_rows)
                if span is None:
                    break
                self._on_step("bounded")
                after, at = stand, Watermark(at.epoch, *span.last)
                added = self._copy(reader, span, at, after, lock)
                rows += added
                self.committed += added
                stand = at
                commits += 1
                self._on_step("committed")
        if commits:
            self._prune(at)
            self._on_step("pruned")
        return ExportReport(rows, commits, time.monotonic() - start, resynced, stand)

    def _begin(self, reader: ChangeReader) -> tuple[Watermark | None, bool]:
        """The target's watermark, and whether all went into the outbox again because it is of another epoch."""
        stand = self._target.watermark()
        if stand is not None and stand.epoch == reader.epoch():
            return stand, False
        if stand is not None:
            _log.warning(
                "the warehouse stands at %s, the catalog is in epoch %s: all is sent anew", stand, reader.epoch()
            )
        with self._catalog.transaction("putting all episodes into the outbox") as connection:
            connection.execute(sa.text("set local lock_timeout = '60s'"))
            # Old rows carry another cluster's transaction ids. New ones must sort behind all that was exported.
            connection.execute(sa.text("delete from kinemill.outbox"))
            connection.execute(
                sa.text("""
                    select setval(pg_get_serial_sequence('kinemill.outbox', 'seq'),
                        greatest(nextval(pg_get_serial_sequence('kinemill.outbox', 'seq')), :seq))
                """),
                {"seq": (stand.seq if stand else 0) + 1},
            )
            connection.execute(
                sa.text("insert into kinemill.outbox (episode_id) select id from kinemill.episode order by id")
            )
        self._on_step("resynced")
        return stand, True

    def _copy(
        self, reader: ChangeReader, span: Span, to: Watermark, after: Watermark | None, lock: sa.Connection
    ) -> int:
        def still_ours() -> None:
            self._on_step("written")
            with translated("the export's lock"):
                lock.execute(sa.text("select 1"))

        with _ReadAhead(lambda: reader.batches(span)) as batches:
            return self._target.append(batches, to, after=after, before_commit=still_ours)

    def _prune(self, at: Watermark) -> None:
        """Forget outbox rows that were exported long ago; recent ones stay for whoever looks into an incident."""
        with self._catalog.transaction("pruning the outbox") as connection:
            connection.execute(
                sa.text("""
                    delete from kinemill.outbox where (xid, seq) <= (cast(cast(:xid as text) as xid8), :seq)
                        and at < clock_timestamp() - cast(:keep as interval)
                """),
                {"xid": str(at.xid), "seq": at.seq, "keep": _KEEP_OUTBOX},
            )


class _ReadAhead:
    """Reads the next batches in a thread while the last are written: both ends are mostly waiting or in C."""

    _END = object()

    def __init__(self, source: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._source = source
        self._queue: queue.Queue[Any] = queue.Queue(_AHEAD)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="kinemill-export-read", daemon=True)

    def _run(self) -> None:
        try:
            for batch in self._source():
                if not self._put(batch):
                    return
        except BaseException as exc:  # noqa: BLE001 - raised again where the batches are consumed
            self._put(exc)
        else:
            self._put(self._END)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def __enter__(self) -> Iterator[pa.RecordBatch]:
        self._thread.start()
        return self._batches()

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while True:
            item = self._queue.get()
            if item is self._END:
                return
            if isinstance(item, BaseException):
                raise item
            yield item

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(timeout=60)
        if self._thread.is_alive():
            raise UnavailableError("the reading half of the export hangs in the database driver")


def export_lag(catalog: Catalog, watermark: Watermark | None) -> ExportLag:
    """How far a target that stands at `watermark` is behind, and who holds it back."""
    at = watermark or Watermark("", 0, 0)
    with catalog.transaction("the export's lag") as connection:
        row = connection.execute(
            sa.text("""
                select count(*) as rows,
                    greatest(0, coalesce(extract(epoch from clock_timestamp() - min(at)), 0)) as age
                from kinemill.outbox where (xid, seq) > (cast(cast(:xid as text) as xid8), :seq)
            """),
            {"xid": str(at.xid), "seq": at.seq},
        ).one()
        holders = connection.execute(
            sa.text("""
                select pid, extract(epoch from clock_timestamp() - xact_start)::int as age, application_name, state
                from pg_stat_activity
                where backend_xid is not null and pid <> pg_backend_pid() order by age(backend_xid) desc limit 5
            """)
        ).all()
    held = tuple(f"pid {h.pid}, open for {h.age} s, {h.application_name or 'unnamed'}, {h.state}" for h in holders)
    return ExportLag(int(row.rows), float(row.age), held if row.rows else ())
