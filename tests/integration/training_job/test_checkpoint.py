"""Checkpoints written by two real gloo ranks through torch.distributed.checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.errors import CorruptError
from kinemill.training.checkpoint import PosixRunFolder
from support import training_job as work
from support.training_job import Ranks


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    yield from work.two_ranks(tmp_path_factory.mktemp("ranks"))


def test_what_was_saved_comes_back_on_every_rank(ranks: Ranks, tmp_path: Path) -> None:
    # given two checkpoints, tensors of several types, optimizer groups and the data position inside
    assert ranks(work.saves, str(tmp_path), 1, [10, 20]) == [20, 20]
    # when the next attempt restores
    found = ranks(work.restores, str(tmp_path), 2)
    # then both ranks have the newest state, in its nested shape
    for step, state, skipped in found:
        assert (step, skipped) == (20, ())
        assert state["model"] == {"w": [[20.0] * 3] * 4, "b": [20, 21, 22]}
        assert state["optimizer"]["state"]["w"]["momentum"] == ["torch.bfloat16", [[2.5] * 3] * 4]
        assert state["optimizer"]["param_groups"] == [{"lr": 2.0, "params": ["w"]}, {"lr": 1.0, "params": ["b"]}]
        assert state["data"] == {"epoch": 1, "sample": 640, "empty": {}, "none": [], "nothing": None}


def test_a_save_is_published_without_waiting_for_the_next_one(ranks: Ranks, tmp_path: Path) -> None:
    # when a run saves once and then only steps
    answers = ranks(work.publishes_at_once, str(tmp_path))
    # then the pointer moved at the same step on both ranks, and a save on top of one in flight was left out
    (refused_0, polls_0), (refused_1, polls_1) = answers
    assert refused_0
    assert refused_1
    assert polls_0 == polls_1
    pointer = PosixRunFolder(tmp_path).pointer()
    assert pointer is not None
    assert [s.step for s in pointer.saved] == [5]


def test_nothing_is_published_before_the_first_save(ranks: Ranks, tmp_path: Path) -> None:
    assert ranks(work.restores, str(tmp_path), 1) == [None, None]


def test_a_torn_checkpoint_is_ignored_and_swept(ranks: Ranks, tmp_path: Path) -> None:
    # given a published step 10, and a step 20 whose writer was killed before the pointer moved
    ranks(work.saves, str(tmp_path), 1, [10])
    torn = tmp_path / "checkpoints" / "step-00000020-a000001"
    torn.mkdir()
    (torn / "__0_0.distcp").write_bytes(b"half")
    # when the next attempt restores and saves
    assert [found[0] for found in ranks(work.restores, str(tmp_path), 2)] == [10, 10]
    assert torn.exists()
    ranks(work.saves, str(tmp_path), 2, [20])
    # then it started from 10, and the torn folder is gone
    assert not torn.exists()
    assert [found[0] for found in ranks(work.restores, str(tmp_path), 3)] == [20, 20]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(ranks: Ranks, tmp_path: Path) -> None:
    # given two published checkpoints, the newer cut short by a dying disk
    ranks(work.saves, str(tmp_path), 1, [10, 20])
    pointer = PosixRunFolder(tmp_path).pointer()
    assert pointer is not None
    folder = tmp_path / "checkpoints" / pointer.saved[0].name
    victim = max(folder.iterdir(), key=lambda p: p.stat().st_size)
    victim.write_bytes(victim.read_bytes()[:-1])
    # when the next attempt restores
    found = ranks(work.restores, str(tmp_path), 2)
    # then it starts from 10 and says what is wrong with 20
    for step, _, skipped in found:
        assert step == 10
        assert "step 20" in skipped[0]
        assert victim.name in skipped[0]


def test_with_every_checkpoint_damaged_it_refuses_to_start_over(ranks: Ranks, tmp_path: Path) -> None:
    # given one checkpoint, one of its files gone
    ranks(work.saves, str(tmp_path), 1, [10])
    pointer = PosixRunFolder(tmp_path).pointer()
    assert pointer is not None
    (tmp_path / "checkpoints" / pointer.saved[0].name / ".metadata").unlink()
    # then a restart says so and does not train from scratch over it
    with pytest.raises(CorruptError, match="every published checkpoint is damaged"):
        ranks(work.restores, str(tmp_path), 2)


def test_only_the_newest_are_kept(ranks: Ranks, tmp_path: Path) -> None:
    ranks(work.saves, str(tmp_path), 1, [10, 20, 30, 40], 2)
    names = sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*"))
    assert names == ["step-00000030-a000001", "step-00000040-a000001"]


def test_a_full_disk_on_one_rank_costs_one_save_and_then_the_attempt(ranks: Ranks, tmp_path: Path) -> None:
    # when rank 1 cannot write once, then can, then cannot twice in a row
    answers = ranks(work.fails_then_recovers, str(tmp_path))
    # then the save in between is published, both ranks give up together, and a wish to stop reaches both
    for first, published, said, stops in answers:
        assert first is False
        assert published == 2
        assert "failed 2 times in a row" in said
        assert "last published step is 2" in said
        assert stops
    assert "no space left" in answers[1][2]
    assert sorted(p.name for p in (tmp_path / "checkpoints").glob("step-*")) == ["step-00000002-a000001"]
