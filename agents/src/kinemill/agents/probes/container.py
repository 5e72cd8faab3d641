"""Really runs something with the container runtime, as the inventory says how."""

from __future__ import annotations

import subprocess

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def read(ctx: Context, emit: Emit) -> None:
    """Emit `container.run`: exit code and last line, or what kept it from starting."""
    command = ctx.settings.hardware.container_command
    if not command:
        return
    try:
        done = subprocess.run(
            list(command),
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={
                "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": "/root",
                "LC_ALL": "C",
            },
            check=False,
        )
    except OSError as exc:
        emit("container.run", {"error": exc.strerror or str(exc)})
        return
    words = (done.stderr or done.stdout).decode("utf-8", "replace").strip().splitlines()
    emit("container.run", {"exit": done.returncode, "last": words[-1][:200] if words else ""})
