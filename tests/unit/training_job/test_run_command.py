"""`kinemill train run`: what it prints, and that its exit code is the launcher's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from kinemill.cli import run as run_command
from kinemill.training import launcher
from kinemill.training.commands.run import run
from kinemill.training.launcher import LaunchPlan, LaunchResult

JOB = 'run = "run"\n[data]\nmanifest = "m"\nstore = "s3://corpus"\n[train]\nsteps = 20\n'
ROWS: list[dict[str, Any]] = [
    {"attempt": 1, "event": "start", "resume_step": None, "world_size": 2, "parameters": 1234},
    *({"attempt": 1, "step": s, "loss": 1.0 / s} for s in range(1, 6)),
    {"attempt": 2, "event": "start", "resume_step": 4, "world_size": 2, "parameters": 1234},
    {"attempt": 2, "event": "published", "step": 8},
    {
        "attempt": 2,
        "event": "evaluation",
        "error": 0.5,
        "against_mean": 0.5,
        "blank_against_seeing": 2.0,
        "samples": 64,
    },
]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """The plans that were launched; the launch itself only reports rows."""
    plans: list[LaunchPlan] = []

    def launch(plan: LaunchPlan, *, on_row: Any = None) -> LaunchResult:
        plans.append(plan)
        for row in ROWS:
            on_row(row)
        return LaunchResult(75, "stopped on request", (1, 2))

    monkeypatch.setattr(launcher, "launch", launch)
    return plans


def job(folder: Path) -> str:
    path = folder / "job.toml"
    path.write_text(JOB)
    return str(path)


def test_lines_for_a_log(tmp_path: Path, started: list[LaunchPlan]) -> None:
    said = CliRunner().invoke(run, [job(tmp_path), "--nproc", "4", "--max-restarts", "0"], standalone_mode=False)
    assert said.return_value == 75
    lines = said.stderr.splitlines()
    assert lines[0] == "attempt 1: begins with 2 ranks, 1,234 parameters"
    assert "step 4/20 loss 0.250" in lines
    assert "attempt 2: goes on from step 4 with 2 ranks" in lines
    assert any(line.startswith("held out: error 0.500, 0.50 of predicting the mean; 2.00 times") for line in lines)
    assert lines[-1].startswith("stopped on request (2 attempts, evidence in ")
    # and the options won over the file
    assert (started[0].nproc, started[0].max_restarts) == (4, 0)


def test_json_for_a_program(tmp_path: Path, started: list[LaunchPlan]) -> None:
    said = CliRunner().invoke(run, [job(tmp_path), "--json"], standalone_mode=False)
    rows = [json.loads(line) for line in said.stdout.splitlines()]
    assert rows[:-1] == ROWS
    assert rows[-1] == {"event": "result", "exit_code": 75, "message": "stopped on request", "attempts": [1, 2]}
    assert said.stderr == ""


def test_a_wrong_file_starts_nothing_and_is_78(
    tmp_path: Path, started: list[LaunchPlan], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(JOB + "stepps = 5\n")
    assert run_command(run, "kinemill train run", [str(path)]) == 78
    assert "did you mean 'steps'" in capsys.readouterr().err
    assert started == []
