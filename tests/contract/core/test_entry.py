"""Ctrl-C while a command is still importing: no traceback, exit 130."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

STRUCK = """
import os, signal
os.kill(os.getpid(), signal.SIGINT)
import decimal  # Python looks for signals between two steps
print("went on")
def main():
    print("ran")
"""


def run(folder: Path, code: str, *, handler: str = "default_int_handler") -> subprocess.CompletedProcess[str]:
    """Run `code` where `struck` can be imported, with SIGINT as a terminal's job has it, or as `handler` says."""
    (folder / "struck.py").write_text(STRUCK)
    return subprocess.run(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.{handler})\n{code}"],
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_an_interrupt_during_imports_ends_at_once_and_without_a_traceback(tmp_path: Path) -> None:
    done = run(
        tmp_path, "import sys; sys.argv = ['/opt/bin/kinemill']; from kinemill import entry; entry.start('struck')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kinemill: interrupted\n")


def test_an_interrupt_that_the_caller_ignores_stays_ignored(tmp_path: Path) -> None:
    done = run(tmp_path, "from kinemill import entry; entry.start('struck')", handler="SIG_IGN")
    assert (done.returncode, done.stdout, done.stderr) == (0, "went on\nran\n", "")


@pytest.mark.parametrize(
    ("module", "group", "name"),
    [
        ("kinemill.cli", "cli", "kinemill"),
        ("kinemill.agents.cli", "node", "kinemill-node"),
    ],
)
def test_a_commands_own_code_gets_ctrl_c_as_an_exception_and_may_clean_up(
    tmp_path: Path, module: str, group: str, name: str
) -> None:
    code = (
        f"import click, os, signal, sys, {module}\n"
        "@click.command()\n"
        "def wait():\n"
        "    try:\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    finally:\n"
        "        print('cleaned up')\n"
        f"{module}.{group}.add_command(wait)\n"
        f"sys.argv = ['{name}', 'wait']\n"
        f"from kinemill import entry; entry.start('{module}')"
    )
    done = run(tmp_path, code)
    assert (done.returncode, done.stdout) == (130, "cleaned up\n")
    assert done.stderr.strip() == f"{name}: interrupted"


def test_both_scripts_start_there() -> None:
    scripts = {}
    for floor in ("core", "agents"):
        scripts.update(tomllib.loads((REPO / floor / "pyproject.toml").read_text())["project"]["scripts"])
    assert scripts == {"kinemill": "kinemill.entry:main", "kinemill-node": "kinemill.agents.entry:main"}


def test_the_entry_imports_nothing_that_takes_time() -> None:
    sources = [str(REPO / floor / "src") for floor in ("core", "agents")]
    code = f"import sys; sys.path[:0] = {sources!r}; import kinemill.agents.entry; print(*sys.modules)"
    command = [sys.executable, "-I", "-S", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300)
    loaded = done.stdout.split()
    assert "kinemill.entry" in loaded
    assert not {"click", "typing", "re", "json", "logging"} & set(loaded)
