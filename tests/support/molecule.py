"""One scenario of molecule/ from create to destroy, as `make cluster` and `make full-cluster` run it."""

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


def run_scenario(name: str, *needed: str, run: str = "make full-cluster online", timeout_s: float = 1700) -> None:
    """Run it; its output is the message where a step fails.

    Args:
        name: Of the folder below molecule/.
        needed: Images, built first so that a dead mirror is a skip and no failure of the scenario.
        run: What would run it, for the skip.
        timeout_s: For the whole scenario.
    """
    need_sandbox()
    try:
        for image in needed:
            images.build(image)
    except UnavailableError as error:
        skip(f"no images and the package mirror does not answer ({error})", run=run)
    tools = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(
        [tools / "molecule", "test", "--scenario-name", name],
        cwd=REPO,
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
