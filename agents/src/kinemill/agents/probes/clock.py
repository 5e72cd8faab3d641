"""Asks the system whether its clock is synchronised. A probe of its own: it starts a program, which no prolog needs."""

from __future__ import annotations

import subprocess

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]


def read(ctx: Context, emit: Emit) -> None:
    """Emit `clock.state`: `synchronized` is True, False, or None where nobody answers."""
    del ctx
    emit("clock.state", _clock())


def _clock() -> dict[str, object]:
    """The system's own word on synchronisation; None where no time service answers."""
    try:
        done = subprocess.run(
            ["/usr/bin/timedatectl", "show", "--property=NTPSynchronized", "--property=NTP"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"},
            check=False,
        )
    except OSError:
        return {"synchronized": None}
    answer = dict(line.split("=", 1) for line in done.stdout.splitlines() if "=" in line)
    return {"synchronized": {"yes": True, "no": False}.get(answer.get("NTPSynchronized", ""))}
