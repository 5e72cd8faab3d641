"""Running a script as somebody who is nobody, and hooks with patience."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kinemill.process import Account, reachable
from support.layers import skip

__all__ = ["patient_python", "run_as_nobody"]

_NOBODY = Account("nobody", 65534, 65534)


_PATIENT = """
import runpy
import sys

from kinemill.agents import runner

runner._REAP_S = 5.0
runner.PROBE_S = runner.run_probes.__kwdefaults__["timeout_s"] = 9.0
sys.argv = ["-m", *sys.argv[4:]]  # what stands behind -I -m kinemill.agents.hook
runpy.run_module("kinemill.agents.hook", run_name="__main__")
"""


def patient_python(folder: Path) -> str:
    """A stand-in for Python that runs the hooks with 9 s a probe, not 2: other work on the machine is no fault."""
    script = folder / "patient.py"
    script.write_text(_PATIENT)
    python = folder / "patient-python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I "{script}" "$@"\n')
    python.chmod(0o755)
    return str(python)


def run_as_nobody(script: str, *, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Run Python text as an ordinary user with a bare environment: no home, no XDG_RUNTIME_DIR."""
    if os.geteuid() != 0:
        skip("already an ordinary user: the tests beside this one are this one", run="make test as root")
    system = Path(f"/usr/bin/python3.{sys.version_info.minor}")
    found = next((p for p in (Path(sys.executable).resolve(), system) if p.exists() and reachable(p, _NOBODY)), None)
    places = [p for p in sys.path if p and Path(p).is_dir()]
    if found is None or not all(reachable(Path(p) / "x", _NOBODY) for p in places if "site-packages" in p):
        skip("no interpreter and checkout that other users reach", run="make test in a checkout outside of root's home")
    env = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "PYTHONDONTWRITEBYTECODE": "1"}
    env["PYTHONPATH"] = ":".join(p for p in places if "site-packages" in p or p.endswith("/src"))
    return subprocess.run(
        [str(found), "-c", script],
        env=env,
        user=_NOBODY.uid,
        group=_NOBODY.gid,
        extra_groups=[],
        cwd="/",
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
