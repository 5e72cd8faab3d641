"""The run folder: claims, the pointer and its fence. Needs no torch."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kinemill.errors import ConfigError, ConflictError, ContractError, EnvironmentFault
from kinemill.training.checkpoint import PosixRunFolder, RunFolder, Saved, open_run, write_atomically


def saved(step: int, attempt: int, run: PosixRunFolder) -> Saved:
    name = run.step_name(step, attempt)
    folder = run.root / "checkpoints" / name
    folder.mkdir()
    (folder / "data").write_bytes(b"x" * step)
    return Saved(step, name, attempt, 2, 1, run.seal(name))


def test_it_is_a_run_folder(tmp_path: Path) -> None:
    assert isinstance(PosixRunFolder(tmp_path), RunFolder)


def test_claims_are_unique_and_monotone_whoever_races(tmp_path: Path) -> None:
    # given attempts 1 and 7 (2 to 6 were removed by somebody)
    run = PosixRunFolder(tmp_path)
    assert run.claim_attempt() == 1
    (tmp_path / "attempts" / "000007").mkdir()
    # when eight claim at once
    got: list[int] = []
    gate = threading.Barrier(8)

    def claim() -> None:
        gate.wait()
        got.append(run.claim_attempt())

    threads = [threading.Thread(target=claim) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    # then each has its own, and none is below 8
    assert sorted(got) == list(range(8, 16))


def test_the_pointer_names_what_was_published_newest_first(tmp_path: Path) -> None:
    run = PosixRunFolder(tmp_path)
    assert run.pointer() is None
    for step in (1, 2, 3):
        run.publish(saved(step, 1, run), keep=2)
    pointer = run.pointer()
    assert pointer is not None
    assert [s.step for s in pointer.saved] == [3, 2]
    assert run.damage(pointer.saved[0]) is None
    assert not (tmp_path / "checkpoints" / "step-00000001-a000001").exists()


def test_a_process_that_outlived_its_attempt_publishes_nothing(tmp_path: Path) -> None:
    # given attempt 2 has published
    run = PosixRunFolder(tmp_path)
    run.publish(saved(10, 2, run), keep=3)
    # when attempt 1 wakes up
    late = saved(20, 1, run)
    # then it is told so and the pointer stands
    with pytest.raises(ConflictError, match="attempt 2 has taken over"):
        run.publish(late, keep=3)
    pointer = run.pointer()
    assert pointer is not None
    assert pointer.saved[0].step == 10


def test_going_back_to_an_older_step_drops_the_newer_ones(tmp_path: Path) -> None:
    # given attempt 2 restarted from 10 since 20 was damaged, and saves 15
    run = PosixRunFolder(tmp_path)
    run.publish(saved(10, 1, run), keep=3)
    run.publish(saved(20, 1, run), keep=3)
    pointer = run.publish(saved(15, 2, run), keep=3)
    assert [s.step for s in pointer.saved] == [15, 10]


def test_the_sweep_leaves_what_this_attempt_may_still_be_writing(tmp_path: Path) -> None:
    run = PosixRunFolder(tmp_path)
    torn, writing, foreign = (
        tmp_path / "checkpoints" / n for n in ("step-00000009-a000001", "step-00000030-a000002", "x")
    )
    for folder in (torn, writing, foreign):
        folder.mkdir()
    run.publish(saved(20, 2, run), keep=1)
    assert not torn.exists()
    assert writing.exists()
    assert foreign.exists()


def test_a_pointer_of_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    run = PosixRunFolder(tmp_path)
    (tmp_path / "checkpoints" / "latest.json").write_text('{"saved":[],"version":2}')
    with pytest.raises(ContractError, match="version 2"):
        run.pointer()


def test_an_object_store_url_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="give a path"):
        open_run("s3://corpus/run")


@pytest.mark.parametrize("where", ["/proc/nowhere", "/dev/null/run"])
def test_a_folder_that_cannot_be_written_is_explained(where: str) -> None:
    with pytest.raises(EnvironmentFault, match=where):
        open_run(where)


def test_a_write_that_fails_leaves_the_old_file_and_no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file, and a disk that fills up while the next version is flushed
    path = tmp_path / "latest.json"
    write_atomically(path, b"old")

    def full(_: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    # then the message says what to do, and the old content stands alone
    with pytest.raises(EnvironmentFault, match="disk is full: free some room"):
        write_atomically(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["latest.json"]
    assert path.read_bytes() == b"old"
