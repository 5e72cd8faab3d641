"""When trying again makes no sense, and which rank failed first. Needs no torch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinemill.contracts import AttemptMeta, AttemptOutcome
from kinemill.training.attempts import (
    Verdict,
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
