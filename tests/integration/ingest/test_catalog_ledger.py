"""Ingest on the real catalog: the ledger's contract, publishing, and runs that are killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.contracts import EpisodeState
from kinemill.errors import ConflictError
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.catalog.embedded import PostgresServer
from kinemill.pipelines.drops import generate_drops
from kinemill.pipelines.ingest import MemoryLedger
from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
from kinemill.store import MemoryStore, open_store
from support.catalog import fresh_catalog, postgres
from support.ingest import EPISODES, ingest, ledger_contract, shared_drops


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with postgres() as running:
        yield running


@pytest.fixture
def catalog(server: PostgresServer) -> Iterator[Catalog]:
    with fresh_catalog(server) as fresh:
        yield fresh


def test_the_catalog_keeps_the_ledgers_contract(catalog: Catalog) -> None:
    ledger = CatalogLedger(catalog)

    ledger_contract(lambda: ledger)


def test_a_claim_whose_owner_died_runs_out(catalog: Catalog) -> None:
    dead, alive = CatalogLedger(catalog, lease_s=0.2), CatalogLedger(catalog)
    token = dead.claim("v/d", "publish", 1, "a" * 64)
    assert token is not None

    deadline = time.monotonic() + 30
    while (taken := alive.claim("v/d", "publish", 1, "a" * 64)) is None and time.monotonic() < deadline:
        time.sleep(0.05)

    assert taken is not None
    with pytest.raises(ConflictError):
        dead.renew(token)


def test_episodes_are_published_once_with_their_numbers_and_quarantine(catalog: Catalog, tmp_path: Path) -> None:
    store, drop = MemoryStore(), shared_drops()["deskarm_lerobot"]
    for expected in (EPISODES, 0):
        report = ingest(drop.path, "deskarm_lerobot", tmp_path / "w", store=store, ledger=CatalogLedger(catalog))
        assert report.published == expected
        assert [r.code for r in report.quarantined] == ["frames_missing"]

    rows = catalog.episodes(batch="deskarm_lerobot/deskarm_lerobot")
    assert [(r.state, r.frames, r.fps, r.card.robot) for r in rows] == [
        (EpisodeState.PUBLISHED, 60, 20.0, "planar_arm")
    ] * EPISODES
    assert {r.card.vendor_key for r in rows} == {f"deskarm_lerobot/deskarm_lerobot#{i}" for i in range(EPISODES)}
    assert catalog.counts()["rendition"] == EPISODES


def test_a_vendor_key_of_somebody_elses_is_not_taken_over(catalog: Catalog, tmp_path: Path) -> None:
    memory, drop = MemoryLedger(), shared_drops()["deskarm_lerobot"]
    ingest(drop.path, "deskarm_lerobot", tmp_path / "w", ledger=memory)
    entry = next(iter(memory.episodes.values()))
    ledger = CatalogLedger(catalog)
    assert ledger.publish(entry) is EpisodeState.PUBLISHED
    assert ledger.publish(entry) is EpisodeState.PUBLISHED, "the same entry twice is one episode"

    import uuid
    from dataclasses import replace

    from kinemill.contracts import Rendition, episode_key

    other = str(uuid.UUID(int=99))
    receipt = replace(entry.rendition.receipt, episode_id=other)
    key = episode_key(uuid.UUID(other), "vla", receipt.sha256)
    with pytest.raises(ConflictError, match="has this episode already"):
        ledger.publish(replace(entry, rendition=Rendition(other, "vla", key, receipt, "e")))


@pytest.fixture
def two(tmp_path: Path) -> Path:
    """A drop of two good recordings."""
    for name in ("run_000", "run_001"):
        shutil.copytree(shared_drops()["gantry_ros2"].path / name, tmp_path / "drop" / name)
    return tmp_path / "drop"


@pytest.fixture(scope="module")
def long_recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drop whose recordings take a while to convert, so that a run can be met in the middle of it."""
    root = tmp_path_factory.mktemp("long")
    (drop,) = generate_drops(root, 7, episodes=2, seconds=20.0, only=("gantry_ros2",), width=96, height=64)
    return drop.path


@pytest.fixture
def two_long(long_recordings: Path, tmp_path: Path) -> Path:
    """A drop of two good recordings of 20 s."""
    for name in ("run_000", "run_001"):
        shutil.copytree(long_recordings / name, tmp_path / "drop" / name)
    return tmp_path / "drop"


def command(catalog: Catalog, drop: Path, tmp_path: Path) -> tuple[list[str], dict[str, str]]:
    argv = [str(Path(sys.executable).with_name("kinemill")), "ingest", "run", str(drop), "--vendor", "gantry_ros2"]
    argv += ["--workers", "2", "--json", "--store", f"file://{tmp_path}/store", "--work-dir", str(tmp_path / "w")]
    return argv, {**os.environ, "KINEMILL_CATALOG_URL": catalog.libpq_url}


def found(folder: Path, pattern: str) -> bool:
    """True where a file of that name lies below a folder that somebody else changes all the time."""
    import fnmatch

    return any(fnmatch.fnmatch(name, pattern) for _, _, names in os.walk(folder) for name in names)


def test_killed_at_any_moment_the_next_run_completes_and_nothing_is_doubled(
    catalog: Catalog, two_long: Path, tmp_path: Path
) -> None:
    argv, env = command(catalog, two_long, tmp_path)
    store_folder = tmp_path / "store"
    for published in (0, 1):  # kill in the middle of converting, then after the first object stands in the store
        run = subprocess.Popen(argv, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 120
        try:
            while time.monotonic() < deadline and run.poll() is None:
                stored = found(store_folder, "vla-*.mcap")
                if (not published and found(tmp_path / "w" / "ingest", ".episode-*.part")) or (published and stored):
                    break
                time.sleep(0.01)
        finally:
            run.send_signal(signal.SIGKILL)
            run.wait()

    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["failed"] == []
    assert catalog.counts()["published"] == 2
    store = open_store(f"file://{store_folder}")
    assert len(list(store.list("episodes/"))) == 2, "the same recording gives the same key"
    assert [p.name for p in (tmp_path / "w" / "ingest").iterdir() if p.is_dir()] == []
    again = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert json.loads(again.stdout)["done_before"] == 2
    assert again.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_gives_its_claims_back_and_leaves_nothing(
    catalog: Catalog, two_long: Path, tmp_path: Path, number: signal.Signals
) -> None:
    argv, env = command(catalog, two_long, tmp_path)
    run = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    while not found(tmp_path / "w" / "ingest", ".episode-*.part"):
        assert run.poll() is None
        assert time.monotonic() < deadline, "it did not come to converting"
        time.sleep(0.01)

    run.send_signal(number)
    _, stderr = run.communicate(timeout=300)

    assert run.returncode == 130, stderr
    assert [p.name for p in (tmp_path / "w" / "ingest").iterdir() if p.is_dir()] == []
    started = time.monotonic()
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert json.loads(done.stdout)["failed"] == []
    assert catalog.counts()["published"] == 2
    assert "claimed by another run" not in done.stderr, f"it waited {time.monotonic() - started:.0f} s"


def test_a_full_disk_is_a_clear_message_and_the_next_run_works(catalog: Catalog, two: Path, tmp_path: Path) -> None:
    from support.layers import skip

    if os.geteuid() != 0:
        skip("a small file system can only be mounted by root", run="make test as root")
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", str(small)], check=False)
    if mounted.returncode != 0:
        skip("this container may not mount", run="make test as root on a machine that may mount tmpfs")
    try:
        argv, env = command(catalog, two, tmp_path)
        argv[argv.index("--work-dir") + 1] = str(small / "w")
        filler = small / "filler"
        filler.write_bytes(bytes(50 << 20))
        full = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)
        assert full.returncode == 1
        assert "MiB free" in full.stderr
        assert "make room" in full.stderr
        filler.unlink()

        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=300)

        assert json.loads(done.stdout)["published"] == 2
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_claim_of_a_dead_process_of_this_machine_is_ended_at_once(catalog: Catalog) -> None:
    code = """
import sys
from kinemill.pipelines.catalog import Catalog
from kinemill.pipelines.ingest.catalog_ledger import CatalogLedger
with Catalog(sys.argv[1]) as catalog:
    assert CatalogLedger(catalog, lease_s=600).claim("v/d", "publish", 1, "a" * 64)
"""
    subprocess.run([sys.executable, "-c", code, catalog.libpq_url], check=True, timeout=300)
    mine = CatalogLedger(catalog, lease_s=600)
    held = mine.claim("v/d", "publish", 1, "b" * 64)
    assert mine.claim("v/d", "publish", 1, "a" * 64) is None

    CatalogLedger(catalog).run_started("v/d", "v", "d", {})

    assert CatalogLedger(catalog).claim("v/d", "publish", 1, "a" * 64) is not None
    assert CatalogLedger(catalog).claim("v/d", "publish", 1, "b" * 64) is None, "one that lives is left alone"
    assert held is not None
    mine.renew(held)


@pytest.mark.parametrize("owner", ["", "otherhost/boot/pid:[1]/1/1", "host:12", "a/b/c/d/e", "/" * 9])
def test_an_owner_that_nobody_here_can_judge_is_not_dead(owner: str) -> None:
    from kinemill.pipelines.ingest.catalog_ledger import _is_dead

    assert not _is_dead(owner)
