"""Reading from a real object store through a relay that counts, delays, refuses and cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kinemill.loaders import ReadSettings, SparseWindows, open_manifest, resolve, steps
from kinemill.loaders.manifest import Manifest
from kinemill.store.embedded import S3Server
from kinemill.store.retry import Retry
from kinemill.store.s3 import S3Store
from support.loaders import make_episode, manifest_of, publish, step_of
from support.loaders_proxy import Relay

WINDOWS = {"/cam/0": steps(0), "/cam/1": steps(0), "/state": steps(0), "/action": steps(range(5))}
FRAMES = 60


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Store, Relay, Path]]:
    folder = tmp_path_factory.mktemp("s3")
    with S3Server() as server, Relay(server.endpoint) as relay:
        address = replace(server.address, endpoint=relay.endpoint)
        store = S3Store(address, server.credentials, retry=Retry(attempts=4, base_s=0.01, deadline_s=300))
        made = [make_episode(store, seed=i, frames=FRAMES) for i in range(2)]
        publish(store, manifest_of(folder / "m.arrow", [m.row for m in made]), id="demo")
        yield store, relay, folder


@pytest.fixture
def data(site, tmp_path: Path) -> SparseWindows:
    store, relay, _ = site
    relay.set_delay(0.0)
    manifest = open_manifest(resolve(store, "demo"), store=store, folder=tmp_path)
    return SparseWindows(manifest, WINDOWS, store=store, read=ReadSettings(prefetch=0, cache_mib=0))


def test_a_sample_is_one_request_a_group_whatever_is_in_it(site, data: SparseWindows) -> None:
    _, relay, _ = site
    relay.clear()
    picks = [3, 17, 40, 75, 110]
    for pick in picks:
        got = data[pick]
        assert step_of(got["/cam/0"][0].numpy()) == data.locate(pick).step
    assert relay.counted[0] == {"GET range": 2 * len(picks)}


def test_the_manifest_comes_in_one_download_for_two_openers(site, tmp_path: Path) -> None:
    store, relay, _ = site
    ref = resolve(store, "demo")
    relay.clear()
    first = open_manifest(ref, store=store, folder=tmp_path / "a", part_bytes=2048)
    second = Manifest(first._origin, 0, 2)
    assert second[1] == first[1]
    assert relay.counted[0] == {"GET range": -(-ref.size_bytes // 2048)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_flapping_store_loses_nothing(site, workers: int, tmp_path: Path) -> None:
    store, relay, _ = site
    relay.set_delay(0.0)
    # more attempts than faults can meet one request: they are armed again while workers are busy with the last ones
    patient = S3Store(store.address, store._credentials, retry=Retry(attempts=12, base_s=0.01, deadline_s=300))
    manifest = open_manifest(resolve(patient, "demo"), store=patient, folder=tmp_path)
    data = SparseWindows(manifest, WINDOWS, store=patient, read=ReadSettings(prefetch=0, cache_mib=0))
    loader = data.loader(10, workers=workers, multiprocessing_context="fork" if workers else None)
    seen: list[int] = []
    for step, batch in enumerate(loader):
        if step % 3 == 0:
            relay.fail_next(2)
        if step % 3 == 1:
            relay.cut_next(1)
        assert batch["valid"].all()
        seen += batch["index"].tolist()
    assert sorted(seen) == list(range(2 * FRAMES))
    assert not loader.masked


def test_a_store_that_refuses_too_long_masks_and_says_unavailable(site, data: SparseWindows) -> None:
    _, relay, _ = site
    relay.fail_next(1000)
    got = data[3]
    relay.fail_next(0)
    assert not got["valid"]
    assert got["masked"] == "unavailable"
    assert data[3]["valid"]


def test_fetching_ahead_hides_latency_and_changes_nothing(site, tmp_path: Path) -> None:
    store, relay, _ = site
    manifest = open_manifest(resolve(store, "demo"), store=store, folder=tmp_path)
    relay.set_delay(0.0)
    plain = SparseWindows(manifest, WINDOWS, store=store, read=ReadSettings(prefetch=0, cache_mib=0))
    expected = [b["index"].tolist() for b in plain.loader(8)]
    relay.set_delay(0.02)
    ahead = SparseWindows(manifest, WINDOWS, store=store, read=ReadSettings(prefetch=16))
    got = []
    for batch in ahead.loader(8):
        got.append(batch["index"].tolist())
        for i, n in enumerate(batch["index"].tolist()):
            assert step_of(batch["/cam/1"][i, 0].numpy()) == ahead.locate(n).step
    assert got == expected
    assert len(ahead.engine._ahead) <= 32
