"""The servers' own disks fill up: what was confirmed stays, what fails says why, and it goes on when there is room."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.layers import skip

SCRIPT = Path(__file__).parents[2] / "support" / "catalog_disk.py"
OWN_MOUNTS = ["unshare", "--mount", "--propagation", "private"]


@pytest.fixture
def point() -> Iterator[Path]:
    """A folder to mount on, which the servers' accounts reach."""
    if os.geteuid() != 0 or subprocess.run([*OWN_MOUNTS, "true"], capture_output=True, check=False).returncode != 0:
        skip("mounting a small disk needs root and unshare", run="make full-catalog as root")
    folder = Path(tempfile.mkdtemp(prefix="kinemill-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def on_a_small_disk(server: str, point: Path) -> dict[str, object]:
    done = subprocess.run(
        [*OWN_MOUNTS, sys.executable, str(SCRIPT), server, str(point)],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.full("catalog")
def test_the_catalogs_disk_is_full(point: Path) -> None:
    found = on_a_small_disk("postgres", point)
    assert found["transient"], found
    assert found["told_by_server"], found
    assert (found["lost"], found["surplus"]) == (0, 0), found
    assert int(str(found["kept"])) > 0


@pytest.mark.full("catalog")
def test_the_object_stores_disk_is_full(point: Path) -> None:
    found = on_a_small_disk("weed", point)
    assert found["transient"], found
    assert found["told_by_server"], found
    assert found["readable_while_full"] == found["kept"], "a full disk may stop writers, not readers"
    assert found["lost"] == 0, found
