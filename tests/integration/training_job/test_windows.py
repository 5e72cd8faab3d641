"""The job's data over real episodes: position, statistics, held-out share, and a recording without cameras."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kinemill.errors import ConfigError
from kinemill.training.job.config import DataConfig, JobConfig, TrainConfig
from kinemill.training.job.source import Batch
from kinemill.training.job.windows import WindowSource, open_windows
from support.training_windows import corpus


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> JobConfig:
    folder = tmp_path_factory.mktemp("windows")
    store, manifest = corpus(folder)
    data = DataConfig(manifest=manifest, store=store, width=32, height=24, mode="in_memory")
    return JobConfig(run=str(folder / "run"), data=data, train=TrainConfig(batch=8))


def take(source: WindowSource, count: int) -> list[Batch]:
    return list(itertools.islice(source.batches(), count))


def test_shapes_and_what_is_valid(config: JobConfig) -> None:
    (batch,) = take(open_windows(config, 0, 1), 1)
    assert batch.frames.shape == (8, 2, 24, 32, 3)
    assert batch.frames.dtype == torch.uint8
    assert batch.state.shape == (8, 4)
    assert batch.action.shape == (8, 8, 4)
    assert batch.valid.shape == (8, 8)
    assert batch.valid[:, 0].all()


def test_ranks_share_the_samples_and_a_restart_goes_on_where_the_last_batch_ended(config: JobConfig) -> None:
    # given one rank that reads four batches, and its position after two
    whole = open_windows(config, 0, 1)
    stream = whole.batches()
    first = [next(stream) for _ in range(2)]
    position = whole.state_dict()
    rest = [next(stream) for _ in range(2)]
    # when two ranks start anew from that position
    halves = [open_windows(replace(config, train=TrainConfig(batch=4)), rank, 2) for rank in (0, 1)]
    for half in halves:
        half.load_state_dict(position)
    again = [take(half, 2) for half in halves]
    # then together they read what the one would have read, in its order
    for step in range(2):
        joined = torch.cat([again[rank][step].state for rank in (0, 1)])
        assert torch.equal(joined, rest[step].state)
    assert not torch.equal(first[0].state, rest[0].state)


def test_an_epoch_ends_and_the_next_one_has_another_order(config: JobConfig) -> None:
    source = open_windows(config, 0, 1)
    steps = len(source._loader)
    batches = take(source, steps + 1)
    assert source.state_dict()["epoch"] == 1
    assert not torch.equal(batches[0].state, batches[steps].state)


def test_every_rank_has_the_same_statistics(config: JobConfig) -> None:
    one, two = (open_windows(config, rank, 2).statistics() for rank in (0, 1))
    for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True):
        assert torch.equal(a, b)
    assert (one.action_std > 0).all()


def test_held_out_samples_are_shared_out_and_come_from_other_episodes(config: JobConfig) -> None:
    halves = [list(open_windows(config, rank, 2).held_out(30)) for rank in (0, 1)]
    assert [sum(len(b.state) for b in half) for half in halves] == [15, 15]
    seen = torch.cat([b.state for b in take(open_windows(config, 0, 1), len(open_windows(config, 0, 1)._loader))])
    held = torch.cat([b.state for half in halves for b in half])
    assert not any(bool((row == seen).all(1).any()) for row in held)


def test_a_split_without_episodes_is_named(config: JobConfig) -> None:
    wrong = replace(config, data=replace(config.data, train_split="practice"))
    with pytest.raises(ConfigError, match="no episode of split 'practice'"):
        open_windows(wrong, 0, 1)


def test_a_recording_without_cameras_has_no_samples(tmp_path: Path) -> None:
    # given the same corpus with one episode ahead of the others that has no camera
    store, manifest = corpus(tmp_path, blind=1)
    data = DataConfig(manifest=manifest, store=store, width=32, height=24, mode="in_memory")
    source = open_windows(JobConfig(run=str(tmp_path / "run"), data=data, train=TrainConfig(batch=8)), 0, 1)
    # then training passes over it, and masks nothing
    take(source, len(source._loader))
    assert source.counters()["masked"] == 0
