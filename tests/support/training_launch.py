"""`python training_launch.py CONFIG`: one launch of `training_rank.py`, in a process; its last line is JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from kinemill.training.job.config import load_config
from kinemill.training.launcher import LaunchPlan, launch

LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")
"""127.0.0.1, ::1 and ::ffff:127.0.0.1 as /proc/net/tcp and tcp6 write them."""


def family(root: int) -> list[int]:
    """`root` and its descendants."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    found = {root}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return sorted(found)


def listeners_beyond_loopback() -> list[str]:
    """Listening TCP sockets of this process and its descendants that are not bound to loopback."""
    ours: set[str] = set()
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):
            for fd in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    ours.add(fd.readlink().name)
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in ours and fields[1].split(":")[0] not in LOOPBACK:
                found.append(fields[1])
    return found


def main() -> None:
    config = load_config(Path(sys.argv[1]))
    seen: dict[str, Any] = {"rows": 0, "listeners": []}

    def on_row(row: dict[str, Any]) -> None:
        seen["rows"] += 1
        if row.get("event") == "start":
            seen["listeners"] = listeners_beyond_loopback()

    os.environ["LAUNCHER"] = str(os.getpid())
    result = launch(
        LaunchPlan(
            run=Path(config.run),
            command=(sys.executable, str(Path(__file__).with_name("training_rank.py")), sys.argv[1]),
            nproc=config.launch.nproc,
            max_restarts=config.launch.max_restarts,
            hang_s=config.launch.hang_s,
        ),
        on_row=on_row,
    )
    print(json.dumps({"code": int(result.exit_code), "message": result.message, "attempts": result.attempts, **seen}))


if __name__ == "__main__":
    main()
