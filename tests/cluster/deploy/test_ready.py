"""On a vendor's running Slurm: the scenario `ready`, with nothing installed and no file of the vendor's changed."""

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
def test_a_vendors_slurm_is_added_to_and_a_second_run_changes_nothing_of_anybodys() -> None:
    # given a machine that can run nodes, and the images of the vendor's nodes and of a bare one beside them
    need_sandbox()
    try:
        for image in ("trixie-slurm", "bookworm"):
            images.build(image)
    except UnavailableError as error:
        skip(f"no images and the package mirror does not answer ({error})", run="make full-cluster online")
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    # when the scenario runs: site.yml twice, the second time on a cluster in use, then a look from outside
    done = subprocess.run(
        [tools / "molecule", "test", "--scenario-name", "ready"],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    # then all of it holds
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
