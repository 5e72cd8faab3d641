"""The demo itself, with fewer training steps: killed, interrupted, run to its end, run again, cleaned away."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
STEPS = 300
DEADLINE_S = 1500
"""For a run on a machine that does other things, too; two idle cores need about 90 s."""
ARGUMENTS = ["--steps", str(STEPS)]


pytestmark = pytest.mark.timeout(3600)


class Demo:
    """Runs of the demo in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = 0

    def start(self) -> tuple[subprocess.Popen[bytes], Path]:
        """In a process group of its own, as a terminal would; and its log."""
        self.logs += 1
        log = self.folder.with_name(f"demo-{self.logs}.log")
        command = [sys.executable, "-m", "demo.run", "--dir", str(self.folder), *ARGUMENTS]
        with log.open("wb") as out:
            process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
        return process, log

    def run(self) -> tuple[int, str]:
        """To its end."""
        process, log = self.start()
        try:
            code = process.wait(DEADLINE_S)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return code, log.read_text()

    def clean(self) -> str:
        """`make clean-demo`."""
        command = [sys.executable, "-m", "demo.clean", "--dir", str(self.folder)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        return done.stderr

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / "facts.json").read_text())
        return found


def until(process: subprocess.Popen[bytes], log: Path, words: str) -> None:
    """Wait until the log says `words`."""
    deadline = time.monotonic() + DEADLINE_S
    while words not in log.read_text():
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def living(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder or name it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            where = str((entry / "cwd").readlink())
        except OSError:
            continue
        if str(folder) in words or where.startswith(str(folder)):
            found.append(words)
    return found


def nobody_left(folder: Path) -> None:
    """See that all of them end; the kernel takes its time with the last ones."""
    deadline = time.monotonic() + 60
    while left := living(folder):
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    found = Demo(tmp_path_factory.mktemp("demo") / "build")
    try:
        yield found
    finally:
        if found.folder.exists():
            found.clean()


# The tests below are one story in order: what one run leaves is what the next one finds.


def test_killed_in_the_middle_of_the_ingest_and_meanwhile_a_second_one_is_refused(demo: Demo) -> None:
    # given a run that is ingesting
    process, log = demo.start()
    until(process, log, "gantry_ros2: 8 episodes published")
    # when another is started in the same folder
    code, said = demo.run()
    # then it is refused, and told which process to wait for or stop
    assert code == 1
    assert f"the demo is running already, as process {process.pid}" in said
    # when the first is killed where it stands
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(120) == -signal.SIGKILL


def test_ctrl_c_in_the_middle_of_the_training(demo: Demo) -> None:
    # when the next run is interrupted as by Ctrl-C (every process of the group hears it)
    process, log = demo.start()
    until(process, log, "attempt 1 begins")
    os.killpg(process.pid, signal.SIGINT)
    # then it says where, and nothing is left running
    assert process.wait(300) == 130
    assert "interrupted in 'train, killed once on the way'" in log.read_text()
    nobody_left(demo.folder)
    # and what the killed run had finished was not done again
    assert "gantry_ros2: nothing to ingest, all 9 recordings were ingested before" in log.read_text()


def test_the_next_run_goes_all_the_way_and_the_policy_learned_from_the_pictures(demo: Demo) -> None:
    code, said = demo.run()
    assert code == 0, said
    facts = demo.facts()
    # every vendor's good episodes are there, and every broken one lies aside with its own reason
    assert [(i["vendor"], i["episodes"]) for i in facts["ingested"]] == [
        ("gantry_ros2", 8),
        ("twinarm_aloha", 8),
        ("deskarm_lerobot", 8),
    ]
    assert [i["put_aside"][0][1] for i in facts["ingested"]] == ["truncated", "nan_in_state", "frames_missing"]
    assert facts["manifest"]["splits"] == {"train": 18, "val": 6}
    # a random sample takes at most one request per topic group, counted by the server
    assert facts["reads"]["samples"] == 256
    assert facts["reads"]["masked"] == 0
    assert facts["reads"]["requests"] <= 2 * facts["reads"]["samples"]
    # it learned, and the frames matter
    assert facts["evaluation"]["samples"] == 256
    # though a rank was lost on the way, and the run had been interrupted before
    assert [a["outcome"] for a in facts["attempts"]] == ["preempted", "failed", "finished"]
    assert "SIGKILL" in facts["attempts"][1]["cause"]
    assert facts["evaluation"]["against_mean"] <= 0.8
    assert facts["evaluation"]["blank_against_seeing"] >= 1.2


def test_the_page_is_whole_in_itself(demo: Demo) -> None:
    page = (demo.folder / "report.html").read_text()
    # it asks nobody for anything
    assert not re.search(r"""(?:src|href)=["'](?!data:)""", page)
    assert "@import" not in page
    assert "url(" not in page
    # and shows what it is for
    assert page.count("data:image/jpeg;base64,") == 3 * 2 * 8
    assert "goes on from step" in page
    assert page.count("<svg") == 5
    for vendor in ("gantry_ros2", "twinarm_aloha", "deskarm_lerobot"):
        path = demo.folder / "episodes" / f"{vendor}.mcap"
        assert str(path) in page
        assert path.read_bytes()[:8] == b"\x89MCAP0\r\n"


def test_run_again_it_ingests_nothing_and_says_so_though_its_port_is_taken(demo: Demo) -> None:
    # given that somebody took the port that the object store had
    port = json.loads((demo.folder / "state" / "s3" / "server.json").read_text())["s3.port"]
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # somebody else on this machine has it already
            stack.enter_context(socket.create_server(("127.0.0.1", port)))
        code, said = demo.run()
    # then another port does, and nothing is done twice
    assert code == 0, said
    assert f"127.0.0.1:{port}," not in said
    assert said.count("nothing to ingest, all") == 3
    assert "they were made before" in said
    assert "was built before" in said
    assert "it was trained to step 300 before; only the evaluation runs" in said
    facts = demo.facts()
    assert facts["second_run"] is True
    assert [i["published_now"] for i in facts["ingested"]] == [0, 0, 0]


def test_cleaned_away_nothing_is_left(demo: Demo) -> None:
    link = demo.folder / "state" / "postgres" / "data"
    outside = link.readlink().parent if link.is_symlink() else None
    demo.clean()
    assert not demo.folder.exists()
    assert outside is None or not outside.exists()
    nobody_left(demo.folder)
    assert "nothing to remove" in demo.clean()
