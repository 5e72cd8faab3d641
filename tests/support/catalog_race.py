"""The outbox race: writers in processes of their own, rollbacks, kill -9, and readers that are and are not careful."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from kinemill.pipelines.warehouse.read import ChangeReader
from kinemill.pipelines.warehouse.watermark import Watermark

__all__ = ["RaceResult", "run_race", "writer"]

_NAIVE_SEQ = "select episode_id, seq from kinemill.outbox where seq > %s order by seq"
_NAIVE_TIME = "select episode_id, at from kinemill.outbox where at > %s order by at"
_SPAN = """
    select episode_id from kinemill.outbox
    where (xid, seq) > (%s::text::xid8, %s) and (xid, seq) <= (%s::text::xid8, %s)
"""


@dataclass
class RaceResult:
    """What the readers saw of what was committed."""

    commits: int = 0
    killed: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    """By reader."""
    duplicated: Counter[str] = field(default_factory=Counter)
    phantom: Counter[str] = field(default_factory=Counter)
    """Rows of transactions that were rolled back or killed."""


def writer(url: str, seed: int, count: int, journal: Path) -> None:
    """Commit `count` transactions; a tenth more roll back. What was committed for certain goes to the journal.

    A row's id is written to the journal as `try` before its commit and as `did` after it, so that a kill in between
    leaves a row of which nobody knows: such rows may be there or not, but never twice.
    """
    rng = random.Random(seed)
    done = 0
    with (
        psycopg.connect(url) as connection,
        open(journal, "a", buffering=1, encoding="ascii") as log,  # noqa: PTH123 - a descriptor kept open
    ):
        while done < count:
            row = uuid.UUID(int=rng.getrandbits(128))
            connection.execute("insert into kinemill.outbox (episode_id) values (%s)", [row])
            time.sleep(rng.random() * 0.03)  # a transaction that does something
            if rng.random() < 0.1:
                connection.rollback()
                log.write(f"never {row}\n")
                continue
            log.write(f"try {row}\n")
            connection.commit()
            log.write(f"did {row}\n")
            done += 1


def _start(url: str, seed: int, count: int, journal: Path) -> subprocess.Popen[bytes]:
    script = (
        "import sys; from pathlib import Path; from support.catalog_race import writer;"
        " writer(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    return subprocess.Popen([sys.executable, "-c", script, url, str(seed), str(count), str(journal)], env=env)


def _caught_up(reader: psycopg.Connection, safe: Watermark) -> bool:
    """Whether the careful reader stands at the last row; it does once no older transaction is open any more.

    The server takes a moment to notice that a writer was killed, and may have transactions of its own.
    """
    found = reader.execute("select xid::text::bigint, seq from kinemill.outbox order by xid desc, seq desc limit 1")
    last = found.fetchone()
    return last is None or (safe.xid, safe.seq) >= (last[0], last[1])


def _journal(folder: Path) -> dict[str, set[uuid.UUID]]:
    found: dict[str, set[uuid.UUID]] = {"try": set(), "did": set(), "never": set()}
    for path in folder.glob("w-*"):
        for line in path.read_text(encoding="ascii").splitlines():
            word, _, text = line.partition(" ")
            if len(text) == 36:
                found[word].add(uuid.UUID(text))
    return found


def run_race(url: str, folder: Path, *, commits: int, writers: int = 8, kills: int = 4, seed: int = 1) -> RaceResult:
    """Race `writers` processes against three readers that poll every few milliseconds."""
    result = RaceResult()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from kinemill.outbox")  # of a race before this one
    seen: dict[str, Counter[uuid.UUID]] = {"safe": Counter(), "seq": Counter(), "time": Counter()}
    rng = random.Random(seed)
    share = -(-commits // writers)
    running = {i: _start(url, seed * 1000 + i, share, folder / f"w-{i}") for i in range(writers)}
    following = writers
    with psycopg.connect(url, autocommit=True) as reader, ChangeReader(url) as changes:
        safe = Watermark("", 0, 0)
        last_seq = 0
        last_time = reader.execute("select '-infinity'::timestamptz::text").fetchone()
        assert last_time is not None
        at = last_time[0]
        finished = False
        deadline = time.monotonic() + (600 if commits < 1000 else 3600)
        while True:
            finished = all(process.poll() is not None for process in running.values())
            # The exporter's own way: a span that is safe to read, then its rows.
            span = changes.next_span(safe, 1_000_000)
            if span is not None:
                values = (str(span.first[0]), span.first[1], str(span.last[0]), span.last[1])
                for row in reader.execute(_SPAN, values).fetchall():
                    seen["safe"][row[0]] += 1
                safe = Watermark("", *span.last)
            for row in reader.execute(_NAIVE_SEQ, [last_seq]).fetchall():
                seen["seq"][row[0]] += 1
                last_seq = row[1]
            for row in reader.execute(_NAIVE_TIME.replace("episode_id, at", "episode_id, at::text"), [at]).fetchall():
                seen["time"][row[0]] += 1
                at = row[1]
            if finished and _caught_up(reader, safe):
                break  # this turn read after the last commit
            if time.monotonic() > deadline:
                raise AssertionError(f"the careful reader stands at {safe} and gets no further")
            if result.killed < kills and len(_journal(folder)["did"]) > commits * (result.killed + 1) // (kills + 2):
                victim = rng.choice([i for i, process in running.items() if process.poll() is None] or [-1])
                if victim >= 0:
                    running[victim].send_signal(signal.SIGKILL)
                    running[victim].wait()
                    result.killed += 1
                    running[following] = _start(url, seed * 1000 + following, share, folder / f"w-{following}")
                    following += 1
            time.sleep(0.005)
    for process in running.values():
        process.wait()
        assert process.returncode in (0, -signal.SIGKILL), process.returncode
    told = _journal(folder)
    result.commits = len(told["did"])
    unsure = told["try"] - told["did"]
    for name, rows in seen.items():
        result.lost[name] = len(told["did"] - set(rows))
        result.duplicated[name] = sum(count - 1 for count in rows.values())
        result.phantom[name] = len(set(rows) - told["did"] - unsure)
    return result
