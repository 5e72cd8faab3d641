"""From bare images to a running cluster, by one playbook: the scenario `bare`, which is `make cluster`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kinemill.control.sandbox import images
from kinemill.errors import UnavailableError
from support.ansible import REPO
from support.cluster import need_sandbox
from support.layers import skip


def test_bare_nodes_become_a_cluster_and_a_second_run_changes_nothing() -> None:
    # given a machine that can run nodes, and their image
    need_sandbox()
    try:
        images.build("bookworm")
    except UnavailableError as error:
        skip(f"no image bookworm and the package mirror does not answer ({error})", run="make test online")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # when the scenario runs: site.yml twice, then a look from outside, with a job and each verify on a broken part
    done = subprocess.run(
        [tools / "molecule", "test", "--scenario-name", "bare"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    # then all of it holds
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
