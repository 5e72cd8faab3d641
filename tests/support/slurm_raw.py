"""Whole outputs of Slurm's commands, release by release, and the scene in which they were recorded."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.cluster import wait_for

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

__all__ = ["COMMANDS", "RAW", "VERSIONS", "load", "record"]

RAW = Path(__file__).parent / "recordings" / "slurm-raw"

# Release -> suite that brings it.
VERSIONS: Mapping[str, str] = {"22.05": "bookworm", "24.11": "trixie", "26.05": "sid"}

# Name of the recording -> command. Those with --json are absent where the release has none.
COMMANDS: Mapping[str, Sequence[str]] = {
    "nodes.txt": ("scontrol", "--oneliner", "--details", "show", "node"),
    "jobs.txt": ("scontrol", "--oneliner", "show", "job"),
    "reservations.txt": ("scontrol", "--oneliner", "show", "reservation"),
    "partitions.txt": ("scontrol", "--oneliner", "show", "partition"),
    "ping.txt": ("scontrol", "ping"),
    "sinfo.txt": ("sinfo", "--Node", "--long"),
    "squeue.txt": ("squeue", "--long"),
    "sacct.txt": ("sacct", "--duplicates", "--parsable2", "--starttime=now-1hour", "--format=JobID,State,NodeList"),
    "nodes.json": ("scontrol", "--json", "show", "node"),
    "jobs.json": ("scontrol", "--json", "show", "job"),
    "reservations.json": ("scontrol", "--json", "show", "reservation"),
    "sinfo.json": ("sinfo", "--json"),
    "squeue.json": ("squeue", "--json"),
    "sacct.json": ("sacct", "--json", "--starttime=now-1hour"),
}


def load(release: str, name: str) -> Any:
    """A recording: text, or parsed JSON."""
    text = (RAW / release / name).read_text(encoding="utf-8")
    return json.loads(text) if name.endswith(".json") else text


def record(cluster: Cluster) -> dict[str, str]:
    """Set the scene on a clean cluster and take every output.

    The scene: n1 drained by an operator with a reason that holds `|` and `=`, one job running on n2, one pending, one
    completed, one failed, a maintenance reservation and one in the future.
    """
    for script in ("true", "exit 7"):
        job = cluster.submit(script, "--gres=gpu:1")
        wait_for("end", lambda job=job: cluster.job(job)["JobState"] in {"COMPLETED", "FAILED"})  # type: ignore[misc]  # mypy cannot type a default in a lambda
    cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=fan=3|replace by hand")
    running = cluster.submit("sleep 600", "--gres=gpu:2", "--job-name=running", "--comment=key=1|x")
    cluster.submit("sleep 600", "--exclusive", "--job-name=pending")
    wait_for("running", lambda: cluster.job(running)["JobState"] == "RUNNING")
    create = ("scontrol", "create", "reservation", "users=root", "duration=60")
    cluster.slurm(*create, "reservationname=now", "starttime=now", "nodes=n1", "flags=maint,ignore_jobs")
    cluster.slurm(*create, "reservationname=later", "starttime=now+1hour", "nodes=n2", "flags=ignore_jobs")
    # Accounting hears of a job a little later than the controller.
    wait_for(
        "accounting",
        lambda: {"RUNNING", "PENDING"} <= set(cluster.slurm(*COMMANDS["sacct.txt"]).replace("|", " ").split()),
    )
    found: dict[str, str] = {}
    for name, command in COMMANDS.items():
        done = cluster.box.exec("ctl", command, check=False)
        if done.returncode == 0:
            found[name] = _plain(done.stdout)
    return found


def _plain(text: str) -> str:
    """Without what belongs to the machine of the recording."""
    return re.sub(r"Linux \d[^ \"]* #1 [^\"]*?@0", "Linux 6.1.0 #1 SMP", text)
