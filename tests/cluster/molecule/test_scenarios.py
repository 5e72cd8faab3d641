"""The role scenarios of molecule/, each with idempotence and its own look from outside.

Those of the whole site have tests of their own in tests/cluster/deploy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.ansible import REPO
from support.cluster import need_sandbox

SITES = {path.stem.removeprefix("test_") for path in (REPO / "tests" / "cluster" / "deploy").glob("test_*.py")}
SCENARIOS = sorted({path.parent.name for path in (REPO / "molecule").glob("*/molecule.yml")} - SITES)


@pytest.mark.full("cluster")
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    need_sandbox()
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [tools / "molecule", "test", "--scenario-name", name],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1500,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
