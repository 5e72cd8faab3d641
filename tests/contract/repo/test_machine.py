"""Setting a machine up: what it says when something is missing, and what CI prints last."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from support.repo import DISTRIBUTIONS, ROOT


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What setting up reads, in another folder, and a folder of programs that stand in for the machine's."""
    tree = tmp_path / "clone"
    (tree / "requirements").mkdir(parents=True)
    shutil.copytree(ROOT / "tools", tree / "tools", ignore=shutil.ignore_patterns("__pycache__"))
    for path in (ROOT / "requirements").iterdir():
        shutil.copy(path, tree / "requirements")
    for name in DISTRIBUTIONS:
        (tree / name).mkdir()
        shutil.copy(ROOT / name / "pyproject.toml", tree / name)
    shutil.copytree(ROOT / ".ci", tree / ".ci")
    (tree / "fake").mkdir()
    return tree


def fake(tree: Path, name: str, body: str) -> None:
    path = tree / "fake" / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def run(tree: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    path = f"{tree / 'fake'}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        list(argv),
        cwd=tree,
        env=os.environ | {"PATH": path, "HOME": str(tree)} | env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_user_without_python_gets_the_one_line_to_type(clone: Path) -> None:
    fake(clone, "dpkg-query", "exit 1")
    fake(clone, "apt-get", "echo called >> apt.log")
    fake(clone, "id", "echo 1000")
    answer = run(clone, "tools/machine.sh", "setup", PYTHON="no-such-python")
    assert answer.returncode == 1
    assert "type: sudo apt-get install -y python3.11 python3.11-venv" in answer.stderr
    assert not (clone / "apt.log").exists()


def test_root_installs_what_is_missing_and_an_old_python_is_refused(clone: Path) -> None:
    fake(clone, "dpkg-query", "exit 1")
    fake(clone, "apt-get", 'echo "$@" >> apt.log')
    fake(clone, "id", "echo 0")
    fake(clone, "old-python", "echo 3.9")
    answer = run(clone, "tools/machine.sh", "setup", PYTHON="old-python")
    assert answer.returncode == 1
    assert "python3.11 python3.11-venv" in (clone / "apt.log").read_text()
    assert ".venv needs Python 3.11 and old-python is 3.9" in answer.stderr


def test_a_target_installs_a_program_that_is_not_there_and_leaves_one_that_is(clone: Path) -> None:
    fake(clone, "dpkg-query", "exit 1")
    fake(clone, "apt-get", 'echo "$@" >> apt.log')
    fake(clone, "id", "echo 0")
    assert run(clone, "tools/machine.sh", "need", "make", "never-installed").returncode == 0
    assert not (clone / "apt.log").exists()
    assert run(clone, "tools/machine.sh", "need", "no-such-program", "package-of-it", "another").returncode == 0
    assert "package-of-it another" in (clone / "apt.log").read_text()


def test_the_doctor_names_what_is_missing_and_ends_with_a_status(clone: Path) -> None:
    fake(clone, "dpkg-query", "exit 1")
    answer = run(clone, "tools/machine.sh", "doctor", PYTHON="no-such-python")
    assert answer.returncode == 1
    assert "MISSING  Python 3.11: no-such-python is" in answer.stdout
    assert "MISSING  Debian packages: apt-get install" in answer.stdout
    assert "MISSING  .venv is missing or old: make setup" in answer.stdout


@pytest.mark.parametrize(
    ("status", "closing"),
    [
        (0, "====== 12 passed, 3 deselected in 4.20s ======"),
        (2, "====== 1 failed, 11 passed in 64.20s (0:01:04) ======"),
    ],
)
def test_ci_prints_the_closing_line_of_pytest_last_and_keeps_the_status(clone: Path, status: int, closing: str) -> None:
    fake(clone, "make", f"echo start; echo '{closing}'; echo after; exit {status}")
    answer = run(clone, "bash", ".ci/run", CI="true")
    assert answer.returncode == status
    assert answer.stdout.splitlines()[-1] == closing


def test_ci_is_red_if_no_test_ran(clone: Path) -> None:
    fake(clone, "make", "echo 'lint: red'; exit 2")
    answer = run(clone, "bash", ".ci/run", CI="true")
    assert answer.returncode == 2
