"""Checkpoints of a job of one process, without torch.distributed; and what a checkpoint refuses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from kinemill.errors import ConflictError, UsageError
from kinemill.training.checkpoint import Checkpointer, PosixRunFolder


def test_one_process_saves_and_restores(tmp_path: Path) -> None:
    saver = Checkpointer(PosixRunFolder(tmp_path), attempt=1)
    assert saver.restore() is None
    saver.save_now(7, {"model": {"w": torch.arange(4.0)}, "note": "x"})
    found = Checkpointer(PosixRunFolder(tmp_path), attempt=2).restore()
    assert found is not None
    assert found.saved.step == 7
    assert found.saved.world_size == 1
    assert torch.equal(found.state["model"]["w"], torch.arange(4.0))
    assert found.state["note"] == "x"


def test_what_was_changed_after_the_save_is_not_in_it(tmp_path: Path) -> None:
    # given a save that is still being written while training goes on
    weight = torch.zeros(1000)
    saver = Checkpointer(PosixRunFolder(tmp_path), attempt=1)
    assert saver.save(1, {"w": weight})
    weight += 1
    saver.finish()
    found = Checkpointer(PosixRunFolder(tmp_path), attempt=2).restore()
    assert found is not None
    assert torch.equal(found.state["w"], torch.zeros(1000))


def test_a_dict_with_integer_keys_is_refused_by_its_place(tmp_path: Path) -> None:
    saver = Checkpointer(PosixRunFolder(tmp_path), attempt=1)
    with pytest.raises(UsageError, match=r"optimizer\.state: key 0 is not text"):
        saver.save(1, {"optimizer": {"state": {0: torch.zeros(1)}}})


def test_a_process_that_outlived_its_attempt_is_stopped_by_its_next_save(tmp_path: Path) -> None:
    run = PosixRunFolder(tmp_path)
    Checkpointer(run, attempt=2).save_now(10, {"w": torch.zeros(1)})
    late = Checkpointer(run, attempt=1)
    with pytest.raises(ConflictError, match="attempt 2 has taken over"):
        late.save_now(11, {"w": torch.ones(1)})
    pointer = run.pointer()
    assert pointer is not None
    assert [s.step for s in pointer.saved] == [10]
