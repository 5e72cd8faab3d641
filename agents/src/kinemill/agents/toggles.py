"""Which checks are off, and who said so: settings, files, environment, the fleet's observe-only list.

A file works when configuration management is down; a job's environment or comment can turn off
nothing: only the agent's own environment counts, which Slurm hooks do not take from users.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path

from kinemill.agents.files import read_json
from kinemill.agents.settings import AgentsSettings

__all__ = ["disabled_checks", "observe_only"]

_NAME = re.compile(r"[a-z0-9_.]{1,40}")


def disabled_checks(
    settings: AgentsSettings, environ: Mapping[str, str], folder: Path = Path("/etc/kinemill/disable.d")
) -> dict[str, str]:
    """Check -> who turned it off."""
    found = dict.fromkeys(settings.checks.disabled, "the inventory")
    with contextlib.suppress(OSError):  # no such folder: nothing is off
        found.update({p.name: f"{folder}/{p.name}" for p in sorted(folder.iterdir()) if _NAME.fullmatch(p.name)})
    for name in environ.get("KINEMILL_DISABLE_CHECKS", "").split(","):
        if _NAME.fullmatch(name):
            found[name] = "KINEMILL_DISABLE_CHECKS"
    return found


def observe_only(settings: AgentsSettings, now_s: int) -> dict[str, str]:
    """Check -> why it may only be observed; from a root-owned list, entries past their time left out."""
    data = read_json(settings.run_dir, "observe_only.json")
    found: dict[str, str] = {}
    for name, entry in data.items() if isinstance(data, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("until"), int | float) and entry["until"] > now_s:
            found[str(name)] = f"{entry.get('why', '')} (by {entry.get('by', '?')})"[:120]
    return found
