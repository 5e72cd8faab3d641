"""Two controllers over one folder: the second takes over from a dead first, and the job does not notice."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kinemill.control.sandbox import faults
from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.furnish import NodeSpec
from support.cluster import need_sandbox, wait_for
from support.deploy import Roles

pytestmark = pytest.mark.full("cluster")

FACTS: dict[str, Any] = {
    "vendor_provides": ["shared_storage"],
    "shared_storage_path": "/shared",
    "slurm_controller_nodes": [{"name": "n1", "cpus": 4, "memory_mb": 1000}],
    "slurm_controller_cgroup_plugin": "cgroup/v1",
    "slurm_controller_constrain": False,
    "slurm_controller_proctrack": "proctrack/linuxproc",
    "slurm_controller_task_plugins": ["task/none"],
    "slurm_controller_select_parameters": "CR_Core",
    "slurm_controller_prolog_flags": ["Alloc"],
    "slurm_controller_slurmd_parameters": ["config_overrides"],
    "slurm_controller_slurmctld_timeout_s": 10,
    "slurm_controller_return_to_service": 2,
    "slurm_node_options": "-b",
}


@pytest.fixture
def box() -> Iterator[Sandbox]:
    need_sandbox()
    specs = [NodeSpec(name, "bookworm-slurm", hardware=None) for name in ("ctl1", "ctl2", "n1")]
    found = Sandbox.up(specs, name=f"b{os.getpid() % 10**6}", owned=True)
    yield found
    found.down()


def test_the_backup_takes_over_and_the_job_survives(box: Sandbox, tmp_path: Path) -> None:
    roles = Roles(box, tmp_path, {"slurm_controllers": ["ctl1", "ctl2"], "slurm_nodes": ["n1"]}, FACTS)

    def on(node: str, text: str) -> str:
        return box.exec(node, ["sh", "-c", text], check=False).stdout.strip()

    def deploy() -> int:
        counts = [roles.apply(["shared_storage", "munge"])]
        counts.append(roles.apply(["slurm_controller"], hosts="slurm_controllers"))
        counts.append(roles.apply(["slurm_node"], hosts="slurm_nodes"))
        return sum(one["changed"] for one in counts)

    def submit(name: str) -> str:
        """Its number; empty where no controller took it."""
        return on("n1", f"cd /tmp; sbatch --parsable --output=/tmp/{name}.txt --wrap='echo {name}'")

    on("ctl1", "mkdir --parents /var/lib/kinemill")
    # given state that the second controller would not see, then nothing is deployed
    apart = roles.run(["slurm_controller"], hosts="slurm_controllers", slurm_controller_state_dir="/var/lib/slurm/ctld")
    assert "need one folder for Slurm's state" in apart.stdout.replace("\n", " ").replace("  ", " ")
    assert "changed=0" in apart.stdout
    # given two controllers, both up, and a second run that changes nothing
    deploy()
    wait_for("both controllers", lambda: on("n1", "scontrol ping").count("is UP") == 2 or None)
    assert deploy() == 0
    assert on("ctl2", "stat --format='%U %a' /shared/slurmctld") == "slurm 700"
    # given a job
    script = "while [ ! -e /tmp/end ]; do sleep 0.2; done; echo survived"
    job = on("n1", f"cd /tmp; sbatch --parsable --output=/tmp/job.txt --wrap='{script}'")
    wait_for("the job", lambda: "RUNNING" in on("n1", f"squeue --noheader --jobs={job} --format=%T") or None)
    # when the first controller loses its power, then the second rules within its time-out, and knows the job
    faults.cut(box, "ctl1")
    wait_for(
        "the takeover",
        lambda: "RUNNING" in on("ctl2", f"timeout 20 squeue --noheader --jobs={job} --format=%T") or None,
    )
    wait_for("the first's death", lambda: "(primary) at ctl1 is DOWN" in on("n1", "scontrol ping") or None)
    # and gives out new work, while the old job ends as if nothing had been
    on("n1", "touch /tmp/end")
    late = wait_for("a late job", lambda: submit("late"))
    for name, text in (("job", "survived"), ("late", "late")):
        wait_for(name, lambda name=name, text=text: text in on("n1", f"cat /tmp/{name}.txt") or None)
    assert "Restarts=0" in on("ctl2", f"scontrol --oneliner show job {job}")
    # when the first is back, then it rules again, and numbers go on where the second left them
    box.on("ctl1")
    wait_for("the return", lambda: on("n1", "scontrol ping").count("is UP") == 2 or None)
    last = wait_for("a last job", lambda: submit("last"))
    assert int(last) > int(late) > int(job)
    wait_for("the last job", lambda: "last" in on("n1", "cat /tmp/last.txt") or None)
