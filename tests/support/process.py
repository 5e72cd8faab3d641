"""Running a script as somebody who is nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kinemill.process import Account, reachable
from support.layers import skip

__all__ = ["run_as_nobody"]

_NOBODY = Account("nobody", 65534, 65534)


def run_as_nobody(script: str, *, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
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
