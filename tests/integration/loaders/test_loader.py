"""The whole way under torch's and torchdata's loaders: order, workers, resume, faults."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from kinemill.contracts import QuarantineRecord
from kinemill.errors import ConfigError
from kinemill.loaders import Manifest, ReadSettings, SparseWindows, TooManyMaskedError, collate, steps
from kinemill.loaders import batch as batch_module
from kinemill.loaders.quarantine import read_quarantine
from kinemill.store.files import FileStore
from support.loaders import FolderStore, make_episode, manifest_of, step_of

FRAMES = [40, 30, 26]
WINDOWS = {"/cam/0": steps(0), "/action": steps(range(4))}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("loader")
    store = FileStore(folder / "bucket")
    made = [make_episode(store, seed=i, frames=n, cameras=1) for i, n in enumerate(FRAMES)]
    return store, made, manifest_of(folder / "m.arrow", [m.row for m in made])


@pytest.fixture
def data(corpus) -> SparseWindows:
    store, _, path = corpus
    return SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url, seed=3)


def numbers(batches) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [n for batch in batches for n in batch]


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_change_nothing(data: SparseWindows, context: str) -> None:
    alone = list(data.loader(8))
    forked = list(data.loader(8, workers=2, multiprocessing_context=context))
    assert numbers(alone) == numbers(forked)
    assert len(alone) == 96 // 8
    for a, b in zip(alone, forked, strict=True):
        assert torch.equal(a["/cam/0"], b["/cam/0"])
        assert torch.equal(a["/action"], b["/action"])
        assert b["/cam/0"].is_contiguous()
    for batch in forked:
        for i, n in enumerate(batch["index"].tolist()):
            assert step_of(batch["/cam/0"][i, 0].numpy()) == data.locate(n).step


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than cores is the point
def test_the_iterable_gives_the_same_batches_whatever_the_workers(data: SparseWindows) -> None:
    expected = numbers(data.loader(8))
    for workers in (0, 2, 3):
        loader = DataLoader(data.iterable(8), batch_size=None, num_workers=workers)
        assert numbers(loader) == expected


def test_an_epoch_covers_everything_once_and_the_next_is_another(data: SparseWindows) -> None:
    loader = data.loader(8)
    first, second = numbers(loader), numbers(loader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(96))
    assert first != second
    assert loader.epoch == 2


def test_resume_mid_epoch_at_another_world_size_and_worker_count(data: SparseWindows) -> None:
    # given two ranks that stop after three steps
    seen: list[int] = []
    states = []
    for rank in range(2):
        loader = data.loader(6, rank=rank, world=2, workers=2)
        for step, batch in enumerate(loader):
            seen += batch["index"].tolist()
            if step == 2:
                break
        states.append(loader.state_dict())
    assert states[0] == states[1]
    state = json.loads(json.dumps(states[0]))  # it goes through a checkpoint
    # when three ranks with another batch size and no workers go on
    rest: list[int] = []
    for rank in range(3):
        loader = data.loader(4, rank=rank, world=3)
        loader.load_state_dict(state)
        rest += flat(numbers(loader))
    # then nothing came twice and nothing is missing
    assert len(seen) == 36
    assert sorted(seen + rest) == list(range(96))


def test_a_loop_that_breaks_off_goes_on_where_it_was(data: SparseWindows) -> None:
    loader = data.loader(8)
    expected = numbers(data.loader(8))
    got = []
    for batch in loader:
        got.append(batch["index"].tolist())
        if len(got) == 5:
            break
    assert got + numbers(loader) == expected


def test_a_state_of_other_windows_is_refused(data: SparseWindows, corpus) -> None:
    store, _, path = corpus
    other = SparseWindows(Manifest.from_file(path), {"/cam/0": steps(0)}, store=store.url, seed=3)
    with pytest.raises(ConfigError, match="identity"):
        other.loader(8).load_state_dict(data.loader(8).state_dict())


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 under torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_the_map_style_set(data: SparseWindows, workers: int) -> None:
    def make() -> StatefulDataLoader:
        return StatefulDataLoader(
            data, batch_sampler=data.sampler(8, workers=workers), num_workers=workers, collate_fn=collate
        )

    expected = numbers(make())
    loader = make()
    iterator = iter(loader)
    got = [next(iterator)["index"].tolist() for _ in range(5)]
    state = loader.state_dict()
    del iterator
    again = make()
    again.load_state_dict(state)
    assert got + numbers(again) == expected


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata 0.11 under torch 2.13
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_dataloader_resumes_the_iterable(data: SparseWindows, workers: int) -> None:
    def make() -> StatefulDataLoader:
        return StatefulDataLoader(data.iterable(8), batch_size=None, num_workers=workers)

    expected = numbers(make())
    loader = make()
    iterator = iter(loader)
    got = [next(iterator)["index"].tolist() for _ in range(5)]
    state = loader.state_dict()
    del iterator
    again = make()
    again.load_state_dict(state)
    assert got + numbers(again) == expected


def test_a_mixture_keeps_its_weights_and_names_its_sources(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    sources = [
        Manifest.from_file(
            manifest_of(tmp_path / f"{i}.arrow", [make_episode(store, seed=10 * i, frames=n, cameras=1).row])
        )
        for i, n in enumerate((60, 20))
    ]
    data = SparseWindows(sources, WINDOWS, store=store.url, weights=[1, 3], epoch_samples=80)
    drawn = flat(numbers(data.loader(8)))
    assert sum(n < 60 for n in drawn) == 20
    assert sum(n >= 60 for n in drawn) == 60
    assert all(drawn.count(60 + i) == 3 for i in range(20))


def test_samples_per_fetch_share_their_requests(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    store = FolderStore(tmp_path / "bucket")
    made = [make_episode(store, seed=i, frames=40, cameras=1) for i in range(2)]
    path = manifest_of(tmp_path / "m.arrow", [m.row for m in made])
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store, samples_per_fetch=5)
    store.forget()
    drawn = numbers(data.loader(10))
    assert sorted(flat(drawn)) == list(range(80))
    assert store.requests()["get_range"] <= 16  # a visit of five samples is one request here: its two groups lie close


# ---- faults


def broken(kind: str):
    def damage(raw: bytes) -> bytes:
        if kind == "flip":
            return raw[:3000] + bytes([raw[3000] ^ 0xFF]) + raw[3001:]
        if kind == "short":
            return raw[:4000]
        return raw

    return damage


@pytest.mark.parametrize(("kind", "reason"), [("flip", "corrupt"), ("short", "truncated"), ("gone", "not_found")])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_broken_episode_is_masked_counted_and_written_down(
    tmp_path: Path, kind: str, reason: str, workers: int
) -> None:
    store = FileStore(tmp_path / "bucket")
    good = make_episode(store, seed=1, frames=40, cameras=1)
    bad = make_episode(store, seed=2, frames=40, cameras=1, damage=broken(kind))
    if kind == "gone":
        store.delete(bad.key)
    data = SparseWindows(
        Manifest.from_file(manifest_of(tmp_path / "m.arrow", [good.row, bad.row])),
        WINDOWS,
        store=store.url,
        run_folder=tmp_path / "run",
        rank=3,
        read=ReadSettings(max_masked_share=1.0, max_in_a_row=1000),
    )
    loader = data.loader(8, workers=workers)
    masked = 0
    for batch in loader:
        for i, valid in enumerate(batch["valid"].tolist()):
            if valid:
                assert not batch["/cam/0_is_pad"][i].any()
                continue
            masked += 1
            assert batch["episode_id"][i] == str(bad.id)
            assert batch["masked"][i] == reason
            assert batch["/cam/0_is_pad"][i].all()
            assert batch["/action_is_pad"][i].all()
            assert not batch["/cam/0"][i].any()
    assert masked > 0
    assert loader.masked == {reason: masked}
    records: list[QuarantineRecord] = read_quarantine(tmp_path / "run")
    assert {(r.code, r.source, r.stage, r.episode_id) for r in records} == {(reason, bad.key, "loader", str(bad.id))}
    assert len(records) <= max(1, workers)  # once a process, not once a sample
    assert [p.name for p in (tmp_path / "run" / "quarantine").iterdir()] == ["rank-00003.jsonl"]


def test_too_many_masked_samples_stop_the_job_with_the_reasons(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    good = make_episode(store, seed=1, frames=60, cameras=1)
    bad = make_episode(store, seed=2, frames=60, cameras=1)
    store.delete(bad.key)
    data = SparseWindows(
        Manifest.from_file(manifest_of(tmp_path / "m.arrow", [good.row, bad.row])),
        WINDOWS,
        store=store.url,
        read=ReadSettings(max_masked_share=0.2, min_samples=20),
    )
    with pytest.raises(TooManyMaskedError, match=r"samples masked, ceiling 20\.0%; reasons: not_found"):
        list(data.loader(8))


def test_a_store_that_is_gone_stops_the_job_soon(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    made = make_episode(store, seed=1, frames=60, cameras=1)
    store.delete(made.key)
    data = SparseWindows(
        Manifest.from_file(manifest_of(tmp_path / "m.arrow", [made.row])),
        WINDOWS,
        store=store.url,
        read=ReadSettings(max_in_a_row=5),
    )
    with pytest.raises(TooManyMaskedError, match="5 samples in a row masked"):
        list(data.loader(8))


def test_a_group_that_is_not_there_is_padding_and_told(tmp_path: Path) -> None:
    store = FileStore(tmp_path / "bucket")
    rows = [
        make_episode(store, seed=1, frames=20, cameras=2).row,
        make_episode(store, seed=2, frames=20, cameras=1, state=False, robot="robot-1").row,
    ]
    data = SparseWindows(
        Manifest.from_file(manifest_of(tmp_path / "m.arrow", rows)),
        {"/cam/0": steps(0), "/cam/1": steps(0), "/action": steps(range(4))},
        store=store.url,
    )
    got = data[25]
    assert got["valid"]
    assert step_of(got["/cam/0"][0].numpy()) == 5
    assert got["/cam/1_is_pad"].all()
    assert got["/action_is_pad"].all()
    assert not got["/action"].any()
    assert dict(data.engine.faults.absent) == {"/cam/1": 1, "/action": 1}


def _die_once(marker: Path):
    class Killer(SparseWindows):
        def read(self, samples, *, ahead=(), epoch=0):
            if torch.utils.data.get_worker_info() is not None and len(list(marker.parent.glob("died*"))) < 2:
                (marker.parent / f"died-{os.getpid()}").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().read(samples, ahead=ahead, epoch=epoch)

    return Killer


def test_killed_workers_are_replaced_and_no_sample_is_lost(corpus, tmp_path: Path) -> None:
    store, _, path = corpus
    data = _die_once(tmp_path / "marker")(Manifest.from_file(path), WINDOWS, store=store.url, seed=3)
    loader = data.loader(8, workers=2, multiprocessing_context="fork", worker_restarts=5)
    drawn = flat(numbers(loader))
    assert sorted(drawn) == list(range(96))
    assert len(list(tmp_path.glob("died*"))) >= 2


def test_workers_that_keep_dying_end_the_job(corpus) -> None:
    store, _, path = corpus

    class Dead(SparseWindows):
        def read(self, samples, *, ahead=(), epoch=0):
            os.kill(os.getpid(), signal.SIGKILL)

    loader = Dead(Manifest.from_file(path), WINDOWS, store=store.url).loader(
        8, workers=1, multiprocessing_context="fork", worker_restarts=1
    )
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(loader)


def test_prometheus_sees_samples_masks_and_seconds(corpus, tmp_path: Path) -> None:
    from prometheus_client import REGISTRY

    store, made, _ = corpus
    gone = make_episode(store, seed=55, frames=8, cameras=1)
    store.delete(gone.key)
    path = manifest_of(tmp_path / "m.arrow", [made[2].row, gone.row])
    data = SparseWindows(
        Manifest.from_file(path), WINDOWS, store=store.url, read=ReadSettings(max_masked_share=1.0, max_in_a_row=100)
    )

    def value(name: str, **labels: str) -> float:
        return REGISTRY.get_sample_value(name, labels) or 0.0

    decode = value("kinemill_loader_seconds_total", phase="decode")
    list(data.loader(2, workers=2, name="metrics-test"))
    assert value("kinemill_loader_samples_total", dataset="metrics-test") == FRAMES[2]
    assert value("kinemill_loader_masked_total", dataset="metrics-test", reason="not_found") == 8
    assert value("kinemill_loader_seconds_total", phase="decode") > decode


def test_more_workers_than_batches_repeat_nothing(data: SparseWindows) -> None:
    assert numbers(data.loader(90, workers=2)) == numbers(data.loader(90))
    loader = DataLoader(data.iterable(90), batch_size=None, num_workers=2)
    assert numbers(loader) == numbers(data.loader(90))


_TRAIN = """
import json, sys, time
from kinemill.loaders import Manifest, SparseWindows, steps
data = SparseWindows(
    Manifest.from_file(sys.argv[1]), {"/cam/0": steps(0), "/action": steps(range(4))}, store=sys.argv[2], seed=3
)
for batch in (loader := data.loader(8, workers=2)):
    print(json.dumps([batch["index"].tolist(), loader.state_dict()]), flush=True)
    sys.stdin.readline()  # the step: it goes on when the test says so
"""


def test_a_killed_run_resumes_without_loss_or_repeat(corpus, data: SparseWindows, tmp_path: Path) -> None:
    store, _, path = corpus
    script = tmp_path / "train.py"
    script.write_text(_TRAIN)
    # given a run with two workers that is killed after its fourth step, workers still reading ahead
    with subprocess.Popen(
        [sys.executable, str(script), str(path), store.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        seen: list[int] = []
        state: dict = {}
        for _ in range(4):
            batch, state = json.loads(run.stdout.readline())
            seen += batch
            run.stdin.write("go\n")
            run.stdin.flush()
        os.killpg(run.pid, signal.SIGKILL)
    # when another goes on from the last state that was saved, alone and with another batch size
    again = data.loader(4)
    again.load_state_dict(state)
    # then the epoch is whole
    assert sorted(seen + flat(numbers(again))) == list(range(96))


# ---- memory


def test_an_epoch_makes_no_memory_after_its_first_batches(corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    # Given batches that count as large, read in this process
    monkeypatch.setattr(batch_module, "BLOCK_FROM", 1 << 16)
    store, _, path = corpus
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url)
    loader = data.loader(16)
    made = []
    # When an epoch, and then another, goes by with one batch in hand
    for _ in range(2):
        for batch in loader:
            assert batch["valid"].all()
            made.append(data._blocks.made)
    # Then the first few batches made all memory that there is
    assert len(made) >= 12
    assert made[2] == made[-1] > 0
    assert data._blocks.reused > 0


def test_batches_that_are_kept_stay_as_they_were(corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "BLOCK_FROM", 1 << 16)
    store, _, path = corpus
    data = SparseWindows(Manifest.from_file(path), WINDOWS, store=store.url)
    kept = list(data.loader(16, shuffle=False))
    for at, batch in enumerate(kept):
        again = data.read(range(at * 16, at * 16 + 16)).batch
        assert torch.equal(batch["/cam/0"], again["/cam/0"])
        assert torch.equal(batch["/action"], again["/action"])
