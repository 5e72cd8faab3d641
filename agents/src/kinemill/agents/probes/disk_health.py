"""Asks each NVMe device about its wear and critical warnings, through smartctl's JSON."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["read"]

_TOOL_PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"


def read(ctx: Context, emit: Emit) -> None:
    """Emit `nvme.devices` and `nvme.<device>`: percentage_used, critical_warning, media_errors, or error, or
    missing_tool."""
    names = sorted(p.name for p in ctx.path("/sys/class/nvme").glob("nvme*") if re.fullmatch(r"nvme\d{1,3}", p.name))
    emit("nvme.devices", names)
    tool = shutil.which("smartctl", path=_TOOL_PATH)
    for name in names:
        emit(f"nvme.{name}", _smart(tool, name) if tool else {"missing_tool": "smartctl"})


def _smart(tool: str, name: str) -> dict[str, object]:
    done = subprocess.run(
        [tool, "--json", "--all", f"/dev/{name}"],
        capture_output=True,
        stdin=subprocess.DEVNULL,
        env={"PATH": _TOOL_PATH, "LC_ALL": "C"},
        check=False,
    )
    try:
        log = json.loads(done.stdout)["nvme_smart_health_information_log"]
        return {k: int(log[k]) for k in ("percentage_used", "critical_warning", "media_errors")}
    except (ValueError, KeyError, TypeError, RecursionError):
        return {"error": f"smartctl exited {done.returncode} without a health log"}
