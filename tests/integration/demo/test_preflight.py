"""What the demo refuses before it starts anything, and in which words; and what it reads from the server's counters."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, Self

import pytest
from demo import clean, counters, pipeline, preflight

from kinemill.errors import ConflictError, EnvironmentFault, ExternalError
from kinemill.process import ProcessId
from kinemill.records import dumps
from kinemill.training.job.config import load_config
from support.layers import skip


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (errno.EROFS, "this checkout is read-only"),
        (errno.EACCES, "you may not write there"),
        (errno.ENOSPC, "the disk is full"),
    ],
)
def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(
        EnvironmentFault, match=rf"{said}; name a folder that you can write: --dir /path, or make demo-local DEMO_DIR="
    ):
        preflight.make_folder(tmp_path / "demo")


def test_a_read_only_checkout_is_named_before_anything_is_set_up(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=300).returncode != 0:
        skip("no right to make a name space of mounts", run="make test as root")
    # given the checkout as a read-only file system, for this command alone
    root = Path(pipeline.__file__).parents[1]
    mount = (
        'mount --bind "$1" "$2" && mount -o remount,bind,ro "$2" && exec make --no-print-directory -C "$2" demo-local'
    )
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", mount, "sh", str(root), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode != 0
    assert f"make demo-local: the checkout {tmp_path} is read-only: copy it to a folder of your own" in done.stderr
    assert done.stdout == ""


def test_a_folder_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    with pytest.raises(EnvironmentFault, match="belongs to another user"):
        preflight.make_folder(tmp_path / "demo")


def test_too_little_room_is_said_before_the_first_run_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 30))
    with pytest.raises(EnvironmentFault, match=r"1\.0 GiB free, 2 needed"):
        preflight.check_machine(tmp_path)
    (tmp_path / "report.html").touch()
    preflight.check_machine(tmp_path)


def test_no_loopback_interface(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))

    monkeypatch.setattr(socket, "create_server", refuse)
    with pytest.raises(EnvironmentFault, match="bring the loopback interface up"):
        preflight.check_machine(tmp_path)


def test_one_demo_at_a_time(tmp_path: Path) -> None:
    preflight.make_folder(tmp_path)
    with (
        preflight.alone(tmp_path),
        pytest.raises(ConflictError, match=f"running already, as process {os.getpid()}"),
        preflight.alone(tmp_path),
    ):
        pass
    with preflight.alone(tmp_path):
        pass


def test_a_command_that_outlives_its_killed_run_is_waited_for(tmp_path: Path) -> None:
    # given a run that is gone, and a command of it that ends a moment later
    preflight.make_folder(tmp_path)
    with preflight.alone(tmp_path) as lock:
        code = "import sys; sys.stdin.read()"
        child = subprocess.Popen([sys.executable, "-c", code], pass_fds=(lock,), stdin=subprocess.PIPE)
    # (its number belongs to another process by now, which has nothing to do with the demo)
    gone = ProcessId(os.getpid(), start_ticks=1, boot_id="another")
    (tmp_path / "state" / "demo.lock").write_text(dumps(gone))
    try:
        # then a run that does not wait is told, and one that waits gets in
        with pytest.raises(ConflictError, match="does not end"), preflight.alone(tmp_path, wait_s=0.0):
            pass
        child.communicate(timeout=300)
        with preflight.alone(tmp_path):
            pass
    finally:
        child.kill()
        child.wait()


def test_a_stale_lock_file_is_no_lock(tmp_path: Path) -> None:
    preflight.make_folder(tmp_path)
    # given one that names a process which lives, and is locked by nobody
    lock = tmp_path / "state" / "demo.lock"
    lock.write_text(dumps(ProcessId.of(os.getppid())))
    with preflight.alone(tmp_path, wait_s=0.0):
        assert f'"pid":{os.getpid()},' in lock.read_text().replace(" ", "")


def test_ctrl_c_before_anything_has_begun_leaves_no_traceback() -> None:
    # given the file up to its imports, as the interpreter is when it reads them
    source = Path(pipeline.__file__).with_name("run.py").read_text()
    code = f"{source[: source.index('import argparse')]}\nimport os\nos.kill(os.getpid(), signal.SIGINT)\nprint('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == -signal.SIGINT
    assert done.stdout + done.stderr == ""


def test_an_old_python_is_told_what_to_do() -> None:
    # given the file as an old interpreter would read it, up to the version check
    source = (Path(pipeline.__file__).with_name("run.py")).read_text()
    head = source[: source.index("import argparse")].replace("sys.version_info < (3, 11)", "True")
    done = subprocess.run([sys.executable, "-c", head], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 1
    assert "too old, 3.11 is needed: make demo-local PYTHON=" in done.stderr


def test_the_job_file_is_one_that_the_job_takes(tmp_path: Path) -> None:
    pipeline.write_job(tmp_path / "job.toml", run=tmp_path / "run", manifest="m-1", steps=300)
    job = load_config(tmp_path / "job.toml")
    # the kill comes between two checkpoints, so that the restart has steps to do again
    assert job.fault.rank == 1
    assert job.fault.step % job.train.checkpoint_every != 0
    assert job.train.checkpoint_every < job.fault.step < job.train.steps


def test_a_command_that_fails_is_named(tmp_path: Path) -> None:
    with pytest.raises(ExternalError, match=r"'kinemill train run' ended with exit code 78"):
        pipeline.kinemill(["train", "run", str(tmp_path / "nowhere.toml")], {}, stderr=subprocess.DEVNULL)


METRICS = """\
SeaweedFS_s3_request_total{bucket="corpus",code="206",type="GET"} 7
SeaweedFS_s3_request_total{bucket="corpus",code="404",type="GET"} 3
SeaweedFS_s3_request_total{bucket="other",code="206",type="GET"} 100
SeaweedFS_s3_request_total{bucket="corpus",code="200",type="PUT"} 2
SeaweedFS_s3_bucket_traffic_sent_bytes_total{bucket="corpus"} 1.5e+06
"""


def test_only_answered_gets_of_the_bucket_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Answer:
        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None:
            return

        def read(self) -> bytes:
            return METRICS.encode()

    monkeypatch.setattr(counters.urllib.request, "urlopen", lambda *_, **__: Answer())
    found = counters.served("http://127.0.0.1:1/metrics", "corpus")
    assert (found.gets, found.sent_bytes) == (7, 1_500_000)
    assert found.since(counters.Served(2, 500_000)) == counters.Served(5, 1_000_000)


def test_cleaning_leaves_what_is_not_the_demos(tmp_path: Path) -> None:
    preflight.make_folder(tmp_path)
    (tmp_path / "report.html").touch()
    (tmp_path / "mine.txt").touch()
    clean.clean(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_cleaning_follows_only_a_link_that_names_us_as_its_origin(tmp_path: Path) -> None:
    place, foreign = tmp_path / "state" / "postgres", tmp_path / "elsewhere"
    place.mkdir(parents=True)
    (foreign / "data").mkdir(parents=True)
    (place / "data").symlink_to(foreign / "data")
    clean.clean(tmp_path)
    assert foreign.exists()
