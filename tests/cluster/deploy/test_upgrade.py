"""The agents from one release to the next and back, then every chore of operation: the scenario `upgrade`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kinemill.control.sandbox import images
from kinemill.errors import UnavailableError
from support.ansible import REPO
from support.cluster import need_sandbox
from support.layers import skip


@pytest.mark.full("cluster")
def test_agents_go_up_and_back_and_every_chore_of_operation_works() -> None:
    # given a machine that can run nodes, and their image
    need_sandbox()
    try:
        images.build("bookworm")
    except UnavailableError as error:
        skip(f"no image bookworm and the package mirror does not answer ({error})", run="make full-cluster online")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # when the scenario runs: site.yml twice with the release before, then each playbook of playbooks/adhoc
    done = subprocess.run(
        [tools / "molecule", "test", "--scenario-name", "upgrade"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=3000,
        check=False,
    )
    # then all of it holds
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
