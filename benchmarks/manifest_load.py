"""A manifest reaches eight ranks of a node: opening, memory, requests, and the three modes side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from frame import Bench, pss_bytes

RANKS = 8
PART = 8 << 20
REQUEST_S = 0.030
LEAST_LIMIT = 256 << 20


# ---- what a rank does, in a process of its own (`python -c`, so that nothing of the benchmark counts)


def rank(spec: dict[str, Any]) -> None:
    """Open, slice and perhaps touch; tell what it took; hold on until told to end."""
    from kinemill.loaders.manifest import Manifest, ManifestRef, open_manifest

    if spec.get("limit_bytes"):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (spec["limit_bytes"], spec["limit_bytes"]))
    start = time.perf_counter()
    if spec.get("path"):
        whole = Manifest.from_file(spec["path"])
    else:
        ref = ManifestRef(**spec["ref"])
        whole = open_manifest(ref, mode=spec["mode"], folder=Path(spec["folder"]), part_bytes=PART)
    mine = whole.shard(spec["rank"], spec["world"])
    took = time.perf_counter() - start
    checksum = 0
    if spec["touch"]:
        from kinemill.contracts import MANIFEST_COLUMNS

        for name in (c.name for c in MANIFEST_COLUMNS if c.name != "layout"):
            for part in mine.arrays(name):
                pages = part.reshape(-1).view("u1")[::64]  # every page, and not every byte
                checksum += int(pages.sum(dtype="int64"))
    whole_s = time.perf_counter() - start
    print(json.dumps({"open_s": took, "whole_s": whole_s, "rows": len(mine), "checksum": checksum}), flush=True)
    sys.stdin.read()


def start_ranks(spec: dict[str, Any], world: int = RANKS) -> list[subprocess.Popen[str]]:
    """Ranks as a launcher starts them: fresh interpreters, all at once."""
    code = (
        "import sys, json; sys.path.insert(0, sys.argv[1]); import manifest_load as m; m.rank(json.loads(sys.argv[2]))"
    )
    here = str(Path(__file__).parent)
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", code, here, json.dumps({**spec, "rank": r, "world": world})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=env,
        )
        for r in range(world)
    ]


def read_line(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    """What a rank told, or None if it died."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line else None


def finish(processes: list[subprocess.Popen[str]]) -> list[str]:
    """End the ranks; the last line of each one's errors."""
    errors = []
    for process in processes:
        _, err = process.communicate("", timeout=120)
        errors.append((err.strip().splitlines() or [""])[-1])
    return errors


def main() -> None:
    """Measure."""
    bench = Bench("manifest_load", __doc__)
    rows = bench.pick(quick=1_000_000, full=20_000_000)
    bench.declare("open_slice_ms", unit="ms", better="lower", bar=100.0, against=f"{rows} rows, mapped, fresh process")
    bench.declare(
        "opened_pss_mb", unit="MB", better="lower", bar=250.0, against=f"{RANKS} ranks that opened and sliced"
    )
    bench.declare(
        "touched_over_file_mb", unit="MB", better="lower", bar=450.0, against=f"{RANKS} ranks that touched all rows"
    )
    bench.declare(
        "downloads", unit="x", better="lower", bar=1.0, against=f"ceil(size / {PART >> 20} MiB) requests, at the server"
    )
    bench.declare("mmap_under_limit", unit="ranks", better="higher", bar=float(RANKS), against="RLIMIT_DATA = file / 4")
    bench.declare("in_memory_under_limit", unit="ranks", better="lower", bar=0.0, against="RLIMIT_DATA = file / 4")
    bench.declare("row_us", unit="us", better="lower", bar=30.0, against="CPU of random rows, warm views")
    for mode in ("node_mmap", "remote_parquet", "in_memory"):
        bench.declare(f"{mode}_requests", unit="requests", better="lower", against=f"{RANKS} ranks, at the server")
        bench.declare(
            f"{mode}_wall_s", unit="s", better="lower", against=f"{RANKS} ranks, {REQUEST_S * 1e3:.0f} ms a request"
        )
        bench.declare(f"{mode}_pss_mb", unit="MB", better="lower", against=f"{RANKS} ranks, all rows touched")
    with tempfile.TemporaryDirectory(prefix="kinemill-bench-") as name:
        measure_all(bench, Path(name), rows)
    bench.finish()


def measure_all(bench: Bench, folder: Path, rows: int) -> None:
    """All figures, in one folder."""
    from support.loaders import manifest_columns, write_manifest

    start = time.perf_counter()
    path = write_manifest(folder / "m.arrow", manifest_columns(rows, words=20_000))
    size = path.stat().st_size
    bench.say(
        f"{rows} rows, {size / 1e6:.0f} MB, {size / rows:.0f} B a row, made in {time.perf_counter() - start:.0f} s"
    )
    local = {"path": str(path), "touch": False}

    opened = []
    for _ in range(bench.pick(quick=3, full=5)):
        ranks = start_ranks(local, 1)
        opened.append((read_line(ranks[0]) or {})["open_s"] * 1e3)
        finish(ranks)
    bench.record("open_slice_ms", sorted(opened)[len(opened) // 2])

    ranks = start_ranks(local)
    told = [read_line(r) for r in ranks]
    assert sum(t["rows"] for t in told if t) == rows
    bench.record("opened_pss_mb", sum(pss_bytes(r.pid) for r in ranks) / 1e6)
    finish(ranks)

    ranks = start_ranks({**local, "touch": True})
    for r in ranks:
        read_line(r)
    bench.record("touched_over_file_mb", (sum(pss_bytes(r.pid) for r in ranks) - size) / 1e6)
    finish(ranks)

    bench.record("row_us", row_us(path, rows))
    limits(bench, path, size)
    modes(bench, folder, bench.pick(quick=300_000, full=5_000_000))


def row_us(path: Path, rows: int) -> float:
    """CPU microseconds a random row, decoded whole, after each page was seen once."""
    import random

    from kinemill.loaders.manifest import Manifest

    manifest = Manifest.from_file(path)
    picks = [random.Random(1).randrange(rows) for _ in range(20_000)]
    for turn in range(2):
        start = time.process_time()
        for i in picks:
            manifest.row(i)
        took = time.process_time() - start
        _ = turn
    return took / len(picks) * 1e6


def limits(bench: Bench, path: Path, size: int) -> None:
    """Both modes under a limit on private memory."""
    from kinemill.store.files import FileStore
    from support.loaders import publish

    bucket = path.parent / "bucket"
    bucket.mkdir()
    ref = publish(FileStore(bucket), path)
    limit = size // 4
    for mode, figure in (("node_mmap", "mmap_under_limit"), ("in_memory", "in_memory_under_limit")):
        if limit < LEAST_LIMIT:
            bench.leave_out(
                figure, f"a limit of {limit >> 20} MiB starts no interpreter; the full run has a larger file"
            )
            continue
        spec = {
            "ref": {f: getattr(ref, f) for f in ref.__dataclass_fields__},
            "mode": mode,
            "folder": str(path.parent / "local"),
            "touch": True,
            "limit_bytes": limit,
        }
        alive = 0
        at_once = RANKS if mode == "node_mmap" else 2  # each of these allocates the whole file before it dies
        for _ in range(RANKS // at_once):
            ranks = start_ranks(spec, at_once)
            alive += sum(read_line(r) is not None for r in ranks)
            errors = finish(ranks)
        bench.say(f"{mode} under RLIMIT_DATA {limit >> 20} MiB: {alive} of {RANKS} finished; {errors[0][:100]}")
        bench.record(figure, float(alive))


def modes(bench: Bench, folder: Path, rows: int) -> None:
    """Requests, time at 30 ms a request, and memory of the three modes, counted in front of a real server."""
    from kinemill.store.embedded import S3Server
    from kinemill.store.s3 import S3Store
    from support.loaders import manifest_columns, publish, write_manifest
    from support.loaders_proxy import Relay

    path = write_manifest(folder / "s.arrow", manifest_columns(rows, words=20_000), parquet=folder / "s.parquet")
    size = path.stat().st_size
    with S3Server() as server, Relay(server.endpoint, delay_s=REQUEST_S) as relay:
        os.environ.update(server.environ())
        store = S3Store(replace(server.address, endpoint=relay.endpoint), server.credentials)
        ref = publish(store, path, parquet=folder / "s.parquet")
        for mode in ("node_mmap", "remote_parquet", "in_memory"):
            relay.clear()
            spec = {
                "ref": {f: getattr(ref, f) for f in ref.__dataclass_fields__},
                "mode": mode,
                "folder": str(folder / "modes"),
                "touch": True,
            }
            ranks = start_ranks(spec)
            told = [read_line(r) for r in ranks]
            pss = sum(pss_bytes(r.pid) for r in ranks)
            errors = finish(ranks)
            assert all(told), errors
            requests = sum(relay.counted[0].values())
            bench.record(f"{mode}_requests", requests)
            bench.record(f"{mode}_wall_s", max(t["whole_s"] for t in told if t))
            bench.record(f"{mode}_pss_mb", pss / 1e6)
            if mode == "node_mmap":
                bench.record("downloads", requests / -(-size // PART))


if __name__ == "__main__":
    main()
