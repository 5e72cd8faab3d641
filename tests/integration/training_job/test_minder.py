"""The process beside each rank: what it writes when its rank cannot. Needs no torch."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinemill.process import ProcessId
from kinemill.training.attempts import Verdict, write_verdict
from kinemill.training.checkpoint import PosixRunFolder

BEGIN = """
import os, signal, sys, time
from pathlib import Path
from kinemill.training.attempts import Evidence
e = Evidence.begin(Path("x")); e.enable(); e.dump_flight_with(lambda: b'{"entries": []}')
run = Path(os.environ["RUN"])
e.move_to(run / "attempts" / "000001", 1)
e.beat(7)
print("out", flush=True); print("err", file=sys.stderr, flush=True)
"""


@pytest.fixture
def run(tmp_path: Path) -> PosixRunFolder:
    folder = PosixRunFolder(tmp_path)
    folder.claim_attempt()
    return folder


def start(run: PosixRunFolder, code: str, *options: str) -> subprocess.Popen[str]:
    env = {**os.environ, "RANK": "1", "KINEMILL_LAUNCH": "L", "RUN": str(run.root)}
    env |= {"TORCHELASTIC_ERROR_FILE": str(run.root / "torchrun.json")}
    minder = [sys.executable, "-m", "kinemill.training.launcher.minder", "--run", str(run.root), *options, "--"]
    return subprocess.Popen([*minder, sys.executable, "-c", BEGIN + code], env=env, text=True)


def report(run: PosixRunFolder, name: str = "exit.json") -> dict[str, Any]:
    path = run.attempt_path(1) / "rank-00001" / name
    answer: dict[str, Any] = json.loads(path.read_text())
    return answer


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < deadline, f"{path} did not appear in 120 s"
        time.sleep(0.02)


def test_a_good_rank_leaves_its_output_and_report_under_the_attempt(run: PosixRunFolder) -> None:
    assert start(run, "").wait(120) == 0
    folder = run.attempt_path(1) / "rank-00001"
    assert (folder / "stdout.log").read_text() == "out\n"
    assert (folder / "stderr.log").read_text() == "err\n"
    end = report(run)
    assert (end["exit_code"], end["signal"], end["last_step"], end["rank"]) == (0, None, 7, 1)
    assert end["cpu_s"] > 0
    assert not (run.root / "torchrun.json").exists()


@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT])
def test_it_ends_as_its_rank_ended(run: PosixRunFolder, signum: signal.Signals) -> None:
    assert start(run, f"os.kill(os.getpid(), {int(signum)})").wait(120) == -signum
    assert report(run)["signal"] == signum.name
    told = json.loads((run.root / "torchrun.json").read_text())
    assert signum.name in told["message"]["message"]


def test_a_rank_that_never_got_a_number_is_reported_too(run: PosixRunFolder) -> None:
    # given a command that is no program of ours and ends with 3
    env = {**os.environ, "RANK": "0", "KINEMILL_LAUNCH": "L", "TORCHELASTIC_RESTART_COUNT": "2"}
    command = [sys.executable, "-c", "import sys; sys.exit('no module named torch')"]
    done = subprocess.run(
        [sys.executable, "-m", "kinemill.training.launcher.minder", "--run", str(run.root), "--", *command],
        env=env,
        check=False,
        timeout=120,
    )
    # then its words and its end lie under early/
    assert done.returncode == 1
    (folder,) = (run.root / "attempts" / "early").iterdir()
    assert folder.name.startswith("L-e2-")
    assert "no module named torch" in (folder / "stderr.log").read_text()
    assert json.loads((folder / "exit.json").read_text())["exit_code"] == 1


def test_a_rank_without_a_step_for_too_long_is_ended_with_its_stacks(run: PosixRunFolder) -> None:
    code = start(run, "def stand_still():\n    time.sleep(600)\nstand_still()", "--hang-s", "3").wait(120)
    assert code == -signal.SIGKILL
    assert report(run)["hung_s"] > 3
    assert "stand_still" in (run.attempt_path(1) / "rank-00001" / "stacks.txt").read_text()
    assert report(run, "flight.json") == {"entries": []}


def test_start_up_is_no_hang(run: PosixRunFolder) -> None:
    # given a rank that has not made a step yet
    code = start(run, "os.ftruncate(e._heartbeat, 0); time.sleep(5); e.beat(8)", "--hang-s", "4").wait(120)
    assert code == 0
    assert report(run)["hung_s"] is None


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_step_of_the_clock_ends_nobody(run: PosixRunFolder, jump_s: int) -> None:
    # given a rank whose last step bears the time before the clock was set
    stamp = f"stamp = time.time() + {jump_s}; os.utime(e._heartbeat, (stamp, stamp)); time.sleep(3)"
    assert start(run, stamp, "--hang-s", "30").wait(120) == 0
    assert report(run)["hung_s"] is None


def test_a_wish_to_stop_reaches_the_rank(run: PosixRunFolder) -> None:
    # given a rank that saves on SIGTERM
    stops = "signal.signal(signal.SIGTERM, lambda *_: (Path(os.environ['RUN'], 'saved').touch(), sys.exit(0)))\n"
    minder = start(run, stops + "e.beat(9)\nPath(os.environ['RUN'], 'up').write_text('up')\ntime.sleep(600)")
    wait_for(run.root / "up")
    minder.terminate()
    assert minder.wait(120) == 0
    assert (run.root / "saved").exists()


def test_a_minder_that_is_killed_takes_its_rank_with_it(run: PosixRunFolder) -> None:
    minder = start(run, "Path(os.environ['RUN'], 'pid').write_text(str(os.getpid()))\ntime.sleep(600)")
    wait_for(run.root / "pid")
    rank = int((run.root / "pid").read_text())
    minder.kill()
    minder.wait(120)
    deadline = time.monotonic() + 120
    while ProcessId.of(rank) is not None:
        assert time.monotonic() < deadline, f"rank {rank} outlived its minder"
        time.sleep(0.02)


def test_after_the_verdict_nothing_is_started(run: PosixRunFolder) -> None:
    write_verdict(run.root / "attempts", "L", Verdict(78, "a wrong setting"))
    assert start(run, "Path(os.environ['RUN'], 'ran').touch()").wait(120) == 0
    assert not (run.root / "ran").exists()


def test_the_minder_is_small(run: PosixRunFolder) -> None:
    # given that there is one beside every rank
    code = (
        "import sys, kinemill.training.launcher.minder as m; print(sorted(n for n in sys.modules if n.split('.')[0] in "
    )
    code += "{'torch', 'numpy', 'pyarrow', 'click'}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
