"""When trying again makes no sense, and which rank failed first. Needs no torch."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinemill.contracts import AttemptMeta, AttemptOutcome
from kinemill.training.attempts import (
    Restarts,
    Verdict,
    count_restarts,
    finish_meta,
    history,
    read_meta,
    read_verdict,
    root_cause,
    stuck,
    write_meta,
    write_verdict,
)
from kinemill.training.checkpoint import PosixRunFolder


def meta(number: int, resume: int | None, outcome: AttemptOutcome = AttemptOutcome.FAILED) -> AttemptMeta:
    return AttemptMeta(number, None, None, 0, ("h",), 2, resume, "v", 1, outcome=outcome)


@pytest.mark.parametrize(
    ("resumes", "now", "gives_up"),
    [
        ([], None, False),
        ([None], None, False),
        ([None, None], None, True),
        ([None, 0], 0, True),  # a checkpoint of step 0 is no progress either
        ([None, 10], 10, False),
        ([None, 10, 10], 10, True),
        ([None, 10, 10], 20, False),
        ([10, 10], 5, False),  # the newest was damaged: an older one is tried
    ],
)
def test_two_attempts_from_the_same_step_are_enough(resumes: list[int | None], now: int | None, gives_up: bool) -> None:
    before = [meta(n + 1, resume) for n, resume in enumerate(resumes)]
    assert (stuck(before, now, limit=2) is not None) is gives_up


def test_the_message_names_the_attempts_and_the_step() -> None:
    said = stuck([meta(3, 40), meta(4, 40)], 40, limit=2)
    assert said is not None
    assert "000003, 000004" in said
    assert "step 40" in said


def test_a_stop_on_request_is_no_failure() -> None:
    before = [meta(1, None, AttemptOutcome.PREEMPTED), meta(2, None)]
    assert stuck(before, None, limit=2) is None


def test_a_person_who_starts_again_gets_a_fresh_count() -> None:
    before = [meta(1, None), meta(2, None)]
    assert stuck(before, None, limit=2, since=3) is None


def test_zero_turns_the_rule_off() -> None:
    assert stuck([meta(1, None)], None, limit=0) is None


def tried(number: int, resume: int | None, last: int | None, **more: Any) -> AttemptMeta:
    """An attempt of 100 s."""
    told = {
        "job_id": "7",
        "slurm_restart_count": 0,
        "torchelastic_restart_count": 0,
        "ended_at_ns": 101 * 10**9,
        **more,
    }
    return AttemptMeta(
        number,
        hosts=("h",),
        world_size=2,
        resume_step=resume,
        code_version="v",
        started_at_ns=10**9,
        last_step=last,
        **told,
    )


def test_restarts_are_counted_by_kind_and_by_the_steps_done_again() -> None:
    attempts = [
        tried(1, None, 50),
        tried(2, 40, 60, torchelastic_restart_count=1),  # 10 steps of 2 s again
        tried(3, 60, 80, slurm_restart_count=1),  # requeued, at the very step it ended with
        tried(4, 70, 70, slurm_restart_count=1, torchelastic_restart_count=1),  # 10 steps of 5 s again
        tried(5, 70, 90, job_id="8"),  # the fourth made no step, so it lost none
        tried(
            6, 60, 100, job_id="8", torchelastic_restart_count=1
        ),  # 30 steps of 5 s: the newest checkpoint was damaged
    ]
    found = count_restarts(attempts)
    assert found.by_kind == {"in_place": 3, "requeue": 1, "resubmit": 1}
    assert found.lost_s == pytest.approx(10 * 2 + 10 * 5 + 30 * 5)
    assert count_restarts(attempts[:1]) == count_restarts([]) == Restarts({}, 0.0)
    for number in range(2, 7):
        assert count_restarts(attempts[:number]).lost_s >= count_restarts(attempts[: number - 1]).lost_s


def test_a_launch_that_begins_anew_outside_of_slurm_is_a_resubmit() -> None:
    before = tried(1, None, 5, job_id=None, torchelastic_restart_count=2)
    assert count_restarts([before, tried(2, 5, 9, job_id=None)]).by_kind == {"resubmit": 1}


@pytest.mark.parametrize("gone", [{"last_step": None}, {"ended_at_ns": None}])
def test_an_attempt_that_left_no_end_counts_as_a_restart_and_loses_nothing_known(gone: dict[str, None]) -> None:
    found = count_restarts([dataclasses.replace(tried(1, 10, 50), **gone), tried(2, 20, 30, job_id="8")])
    assert found == Restarts({"resubmit": 1}, 0.0)


def test_restarts_stand_in_the_registry_under_the_contracts_names() -> None:
    code = (
        "from prometheus_client import generate_latest\n"
        "from kinemill.training.attempts import Restarts\n"
        "Restarts({'in_place': 1}, 2.5).show(); Restarts({'in_place': 2, 'requeue': 1}, 7.25).show()\n"
        "print(generate_latest().decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    lines = [line for line in done.stdout.splitlines() if line.startswith("kinemill_")]
    assert lines == [
        'kinemill_restart_attempts_total{kind="in_place"} 2.0',
        'kinemill_restart_attempts_total{kind="requeue"} 1.0',
        "kinemill_lost_step_seconds_total 7.25",
    ]


def test_meta_is_finished_once_and_history_passes_over_the_undescribed(tmp_path: Path) -> None:
    # given attempt 1 that described itself, and attempt 2 that died before it could
    run = PosixRunFolder(tmp_path)
    first = run.attempt_path(run.claim_attempt())
    run.claim_attempt()
    write_meta(first, meta(1, None, AttemptOutcome.RUNNING))
    # when it ends, and a latecomer says something else
    finish_meta(first, AttemptOutcome.FINISHED, ended_at_ns=5, last_step=30)
    finish_meta(first, AttemptOutcome.FAILED, ended_at_ns=9, last_step=1)
    # then the first word stands
    found = read_meta(first)
    assert found is not None
    assert (found.outcome, found.ended_at_ns, found.last_step) == (AttemptOutcome.FINISHED, 5, 30)
    assert [m.number for m in history(run)] == [1]


def test_the_first_verdict_stands(tmp_path: Path) -> None:
    write_verdict(tmp_path, "a", Verdict(78, "first"))
    write_verdict(tmp_path, "a", Verdict(75, "second"))
    assert read_verdict(tmp_path, "a") == Verdict(78, "first")
    assert read_verdict(tmp_path, "b") is None


def rank(folder: Path, number: int, *, signal: str | None, ended: int, error: tuple[int, str] | None = None) -> None:
    place = folder / f"rank-{number:05d}"
    place.mkdir()
    report = {"rank": number, "signal": signal, "hung_s": None, "last_step": 11, "ended_at_ns": ended, "oom_kills": 0}
    (place / "exit.json").write_text(json.dumps(report))
    if error:
        what = {"rank": number, "time_ns": error[0], "type": "RuntimeError", "message": error[1]}
        (place / "error.json").write_text(json.dumps(what))


def test_a_kill_comes_before_the_peers_that_blame_the_connection(tmp_path: Path) -> None:
    rank(tmp_path, 0, signal=None, ended=5, error=(5, "Connection reset by peer"))
    rank(tmp_path, 1, signal="SIGKILL", ended=6)
    said = root_cause(tmp_path)
    assert said is not None
    assert said.startswith("rank 1 ended by SIGKILL at step 11")


def test_of_two_errors_the_earlier_is_the_cause(tmp_path: Path) -> None:
    rank(tmp_path, 0, signal="SIGTERM", ended=9, error=(7, "Connection reset by peer"))
    rank(tmp_path, 1, signal=None, ended=6, error=(5, "no such topic"))
    said = root_cause(tmp_path)
    assert said is not None
    assert said.startswith("rank 1: RuntimeError: no such topic")


def test_without_evidence_there_is_no_cause(tmp_path: Path) -> None:
    assert root_cause(tmp_path) is None
