"""A cluster in use, before and after a second run of the site: nothing that people rely on may have changed.

    python in_use.py occupy FILE      a drain by a person, a running job, a reservation; FILE keeps how they look
    python in_use.py compare FILE     they look the same; then the cluster is given back

KINEMILL_SANDBOX names the sandbox: controller `ctl`, nodes `n1` and `n2`.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from kinemill.control.sandbox.anchor import until
from kinemill.control.sandbox.box import Sandbox

REASON = "rack 7 is being rewired"
RESERVATION = "class-of-monday"
DEADLINE_S = 600
DAEMONS = {"ctl": ("slurmctld", "slurmdbd", "munge"), "n1": ("slurmd", "munge"), "n2": ("slurmd", "munge")}


def slurm(box: Sandbox, *words: str, check: bool = True) -> str:
    """Output of a command on the controller."""
    return box.exec("ctl", words, check=check, deadline_s=300).stdout.strip()


def field(text: str, name: str) -> str:
    """A field of `scontrol show`; a reason is kept with who gave it and when."""
    pattern = rf"{name}=(.*\])" if name == "Reason" else rf"\b{name}=(\S+)"
    found = re.search(pattern, text)
    return found[1] if found else ""


def look(box: Sandbox, job: str) -> dict[str, object]:
    """What a person would notice if it changed."""
    node = slurm(box, "scontrol", "show", "node", "n2")
    work = slurm(box, "scontrol", "show", "job", job)
    reservation = slurm(box, "scontrol", "show", "reservation", RESERVATION)
    services = {
        node: box.exec(node, ["systemctl", "show", "--property=Id,MainPID,NRestarts", *names]).stdout.split()
        for node, names in DAEMONS.items()
    }
    return {
        "drain": ["DRAIN" in field(node, "State"), field(node, "Reason")],
        "job": {name: field(work, name) for name in ("JobId", "JobState", "Restarts", "StartTime", "BatchHost")},
        "reservation": {name: field(reservation, name) for name in ("Nodes", "StartTime", "EndTime", "Users", "Flags")},
        # A daemon that ran on was neither restarted nor, on new releases, reconfigured.
        "daemons": services,
    }


def occupy(path: Path) -> None:
    """Use the cluster as people do."""
    box = Sandbox.open()
    slurm(box, "scontrol", "update", "nodename=n2", "state=drain", f"reason={REASON}")
    window = ["starttime=now", "duration=120", "nodes=n2", "users=researcher"]
    slurm(box, "scontrol", "create", "reservation", f"reservationname={RESERVATION}", *window)
    batch = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--nodelist=n1", "--wrap=sleep 7200"]
    job = slurm(box, "runuser", "-u", "researcher", "--", *batch)

    def running() -> bool:
        return field(slurm(box, "scontrol", "show", "job", job), "JobState") == "RUNNING"

    until("the job runs", running, deadline_s=DEADLINE_S, every_s=0.3)
    path.write_text(json.dumps({"job": job, "seen": look(box, job)}, indent=2), encoding="utf-8")


def compare(path: Path) -> int:
    """Find everything as it was; then lift it, found or not."""
    box = Sandbox.open()
    before = json.loads(path.read_text(encoding="utf-8"))
    try:
        after = json.loads(json.dumps(look(box, before["job"])))
    finally:
        slurm(box, "scancel", before["job"], check=False)
        slurm(box, "scontrol", "delete", f"reservationname={RESERVATION}", check=False)
        slurm(box, "scontrol", "update", "nodename=n2", "state=resume", check=False)
    for part, seen in before["seen"].items():
        if after[part] != seen:
            print(f"{part}: was {seen}, is {after[part]}", file=sys.stderr)
    if REASON not in str(before["seen"]["drain"]) or after != before["seen"]:
        return 1

    def idle() -> bool:
        return set(slurm(box, "sinfo", "--noheader", "--Node", "--format=%T", check=False).split()) == {"idle"}

    until("all nodes idle", idle, deadline_s=DEADLINE_S, every_s=0.3)
    return 0


if __name__ == "__main__":
    todo, file = sys.argv[1], Path(sys.argv[2])
    raise SystemExit(compare(file) if todo == "compare" else occupy(file))
