"""A disk that fills up while an episode is written: a clear word, nothing half-done, and the next run works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.layers import skip_if

ROOT = Path(__file__).resolve().parents[3]
SMALL = ["--episodes", "4", "--seconds", "6", "--steps", "24"]

# A name space of mounts of its own: the full disk is seen by this run alone, and gone with it.
SCRIPT = """
set -eu
mkdir -p "$DEMO/state/work"
chmod 711 "$DEMO/state"
mount -t tmpfs -o size=96k tmpfs "$DEMO/state/work"
"$@" || code=$?
left=$(find "$DEMO/state/work/ingest" -type f ! -name '*.lock' -printf ' %P')
echo "exit ${code:-0}; left:$left"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Cleaned away however the test ends: a database of root's lies outside it."""
    found = tmp_path / "build"
    yield found
    subprocess.run([sys.executable, "-m", "demo.clean", "--dir", str(found)], cwd=ROOT, check=True, timeout=300)
    assert not found.exists()


@pytest.mark.full("demo")
@skip_if(os.geteuid() != 0, "only root may mount a small disk", run="make full-demo as root")
def test_the_work_disk_fills_up_and_the_next_run_works(folder: Path) -> None:
    command = [sys.executable, "-m", "demo.run", "--dir", str(folder), *SMALL]
    # when the disk for work in progress holds less than one episode
    first = subprocess.run(
        ["unshare", "-m", "bash", "-c", SCRIPT, "bash", *command],
        cwd=ROOT,
        env={**os.environ, "DEMO": str(folder)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    # then the run says so, fails, and leaves nothing of the episode there
    assert "No space left on device" in first.stderr or "disk" in first.stderr, first.stderr
    assert "Traceback" not in first.stderr
    assert first.stdout.splitlines()[-1].startswith("exit ")
    assert not first.stdout.splitlines()[-1].startswith("exit 0")
    assert first.stdout.splitlines()[-1].endswith("left:"), first.stdout
    # and with room again the next run goes all the way (24 steps teach little: it says that, with exit code 1)
    second = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert second.returncode in {0, 1}
    assert (folder / "report.html").exists(), second.stderr
