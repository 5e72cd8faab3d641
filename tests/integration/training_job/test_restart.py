"""Real torchrun, two gloo ranks, real kills: a run ends with the same bits as if nothing had happened."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kinemill.contracts import AttemptOutcome
from kinemill.training.attempts import read_meta
from support.training_launch import listeners_beyond_loopback

SUPPORT = Path(__file__).resolve().parents[2] / "support"

CONFIG = """
run = "{run}"
[data]
manifest = "made-up"
store = "none"
chunk_steps = 2
[policy]
channels = 4
keypoints = 4
hidden = 16
[train]
steps = 30
batch = 8
checkpoint_every = 5
held_out_samples = 16
[launch]
nproc = 2
max_restarts = 4
hang_s = {hang_s}
"""


def launch(folder: Path, crash: str = "", *, hang_s: float = 0.0) -> dict[str, Any]:
    """One launch in its own process; what it said."""
    config = folder / "job.toml"
    config.write_text(CONFIG.format(run=folder / "run", hang_s=hang_s))
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "training_launch.py"), str(config)],
        env={**os.environ, "CRASH": crash},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def rows(run: Path) -> list[dict[str, Any]]:
    files = sorted((run / "attempts").glob("*/metrics.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def finished(run: Path) -> dict[str, Any]:
    return next(row for row in rows(run) if row.get("event") == "finished")


def samples(run: Path, rank: int) -> list[int]:
    """The rank's samples in the order of its steps, what a restart read again taken out."""
    by_step: dict[int, int] = {}
    for line in (run / f"seen-{rank}.txt").read_text().splitlines():
        by_step[int(line) // 16] = int(line)
    return [by_step[step] for step in sorted(by_step)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder / "run", launch(folder)


@pytest.mark.parametrize(("address", "seen"), [("127.0.0.1", 0), ("0.0.0.0", 1)])  # noqa: S104 - what the check must see
def test_the_listener_check_can_fail(address: str, seen: int) -> None:
    before = set(listeners_beyond_loopback())  # other tests of this process keep torch's stores open
    with socket.create_server((address, 0)):
        assert len(set(listeners_beyond_loopback()) - before) == seen


def test_an_undisturbed_run_finishes_and_listens_on_loopback_only(undisturbed: tuple[Path, dict[str, Any]]) -> None:
    run, said = undisturbed
    assert (said["code"], said["attempts"]) == (0, [1])
    assert said["listeners"] == []
    assert said["rows"] == len(rows(run))
    meta = read_meta(run / "attempts" / "000001")
    assert meta is not None
    assert (meta.outcome, meta.last_step, meta.resume_step, meta.world_size) == (AttemptOutcome.FINISHED, 30, None, 2)
    assert not (run / "attempts" / "early").exists()


def test_kill_segfault_and_exception_change_no_bit(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    # when rank 1 is killed, then rank 0 segfaults, then rank 1 raises, each in another attempt
    said = launch(tmp_path, "1:1:12:kill,2:0:18:segv,3:1:22:raise")
    run = tmp_path / "run"
    # then torchrun restarted in place each time and the run is the undisturbed one to the last bit
    assert (said["code"], said["attempts"]) == (0, [1, 2, 3, 4])
    assert finished(run)["digest"] == finished(undisturbed[0])["digest"]
    assert [samples(run, rank) for rank in (0, 1)] == [samples(undisturbed[0], rank) for rank in (0, 1)]
    # and each attempt went on from a published checkpoint and kept its own evidence
    metas = [read_meta(run / "attempts" / f"{n:06d}") for n in (1, 2, 3, 4)]
    resumed = [meta.resume_step for meta in metas if meta is not None]
    assert resumed[0] is None
    assert 5 <= resumed[1] <= 10
    assert resumed[1] <= resumed[2] <= 15
    assert resumed[2] <= resumed[3] <= 20
    assert [meta.outcome for meta in metas if meta] == [AttemptOutcome.FAILED] * 3 + [AttemptOutcome.FINISHED]
    assert [meta.torchelastic_restart_count for meta in metas if meta] == [0, 1, 2, 3]
    begun = [row for row in rows(run) if row.get("event") == "start"]
    assert [row["restarts"] for row in begun] == [{}, {"in_place": 1}, {"in_place": 2}, {"in_place": 3}]
    lost_s = [row["lost_step_s"] for row in begun]
    assert lost_s[0] == 0 < lost_s[1] < lost_s[2] < lost_s[3]
    first, second, third = (run / "attempts" / f"{n:06d}" for n in (1, 2, 3))
    killed = json.loads((first / "rank-00001" / "exit.json").read_text())
    assert (killed["signal"], killed["exit_code"], killed["last_step"]) == ("SIGKILL", None, 11)
    assert "Segmentation fault" in (second / "rank-00000" / "stacks.txt").read_text()
    raised = json.loads((third / "rank-00001" / "error.json").read_text())
    assert (raised["type"], raised["message"]) == ("RuntimeError", "a fault of the job's own")
    # and what the rank logged says of which run and attempt it is
    logged = [
        json.loads(line) for line in (third / "rank-00001" / "stderr.log").read_text().splitlines() if line[:1] == "{"
    ]
    (failure,) = [line for line in logged if line["message"] == "rank 1 failed"]
    assert (failure["run_id"], failure["attempt"], failure["node"]) == ("run", "3", socket.gethostname())
    assert "a fault of the job's own" in failure["traceback"]
    # and the survivor of the kill left its collectives
    flight = json.loads((first / "rank-00000" / "flight.json").read_text())
    assert any("allreduce" in e["profiling_name"].lower().replace("_", "") for e in flight["entries"])


def test_asked_to_stop_it_saves_exits_75_and_goes_on_from_there(
    undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    # when the launcher gets SIGTERM at step 12
    said = launch(tmp_path, "1:0:12:term")
    run = tmp_path / "run"
    # then the run is saved where it stood, and the code says that the same command may go on
    assert said["code"] == 75, said
    meta = read_meta(run / "attempts" / "000001")
    assert meta is not None
    assert meta.outcome is AttemptOutcome.PREEMPTED
    assert f"step {meta.last_step} is saved" in said["message"]
    # when the same command runs again (a requeue)
    said = launch(tmp_path)
    # then the number goes on, nothing is done twice, and no bit differs
    assert (said["code"], said["attempts"]) == (0, [2])
    again = read_meta(run / "attempts" / "000002")
    assert again is not None
    assert again.resume_step == meta.last_step
    assert finished(run)["digest"] == finished(undisturbed[0])["digest"]
    assert len((run / "seen-0.txt").read_text().splitlines()) == 30


def test_a_wrong_setting_ends_the_launch_at_once_with_78(tmp_path: Path) -> None:
    # when one rank finds a setting wrong
    said = launch(tmp_path, "1:1:3:config")
    # then nothing is tried again, and the code and the words are the rank's own
    assert (said["code"], said["message"]) == (78, "data.cameras: no such topic")
    assert said["attempts"] == [1]


@pytest.mark.full("training_job")
def test_a_hung_rank_leaves_its_stacks_and_a_run_without_progress_gives_up(tmp_path: Path) -> None:
    # given a rank that hangs before the first checkpoint, then one that fails at the same place
    said = launch(tmp_path, "1:1:3:hang,2:0:3:raise,3:0:3:raise", hang_s=8.0)
    run = tmp_path / "run"
    # then the hung one was ended with evidence
    hung = run / "attempts" / "000001" / "rank-00001"
    assert json.loads((hung / "exit.json").read_text())["hung_s"] > 8.0
    assert "_crash" in (hung / "stacks.txt").read_text()
    assert json.loads((hung / "flight.json").read_text())["entries"]
    # and after two attempts without progress the third gave up, naming the cause
    assert said["code"] == 1
    assert said["attempts"] == [1, 2, 3]
    assert "attempts 000001, 000002 all began at the start" in said["message"]
    assert "a fault of the job's own" in said["message"]
    last = read_meta(run / "attempts" / "000003")
    assert last is not None
    assert last.outcome is AttemptOutcome.NO_PROGRESS


@pytest.mark.full("training_job")
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("how", ["kill", "segv", "raise", "hang"])
@pytest.mark.parametrize("step", [3, 12, 30])
def test_kill_matrix(undisturbed: tuple[Path, dict[str, Any]], tmp_path: Path, rank: int, how: str, step: int) -> None:
    """Before the first checkpoint, in the middle, and at the last step."""
    said = launch(tmp_path, f"1:{rank}:{step}:{how}", hang_s=20.0)
    assert (said["code"], said["attempts"]) == (0, [1, 2])
    assert finished(tmp_path / "run")["digest"] == finished(undisturbed[0])["digest"]
    for attempt in ("000001", "000002"):
        for name in ("rank-00000", "rank-00001"):
            assert (tmp_path / "run" / "attempts" / attempt / name / "exit.json").exists()
