"""Jobs on the vendor's Slurm go through the vendor's hooks and ours."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable

SANDBOX = os.environ["KINEMILL_SANDBOX"]
SANDBOXES = os.environ.get("KINEMILL_SANDBOX_STATE", "/run/kinemill/sandbox")
# Straight over ssh: the inventory's own arguments hold templates, which only Ansible resolves.
SETTINGS = f"{SANDBOXES}/by-name/{SANDBOX}/ssh_config"
testinfra_hosts = [f"ssh://root@ctl?ssh_config={SETTINGS}"]


def on(node: str, command: str, *, check: bool = True) -> str:
    """Output of a command on a node."""
    words = ["kinemill", "sandbox", "exec", node, "--", "/bin/sh", "-c", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout


def wait(what: str, ready: Callable[[], bool], *, deadline_s: float = 300) -> None:
    """Ask until it is so."""
    end = time.monotonic() + deadline_s
    while not ready():
        assert time.monotonic() < end, (
            f"{what}: not after {deadline_s:.0f} s\n{on('ctl', 'squeue; sinfo -R; sinfo -N')}"
        )
        time.sleep(0.5)


def submit(host, options: str) -> str:
    host.check_output("install -d -o researcher /shared/out")
    return str(
        host.check_output(
            f"runuser -u researcher -- sbatch --parsable --chdir=/shared/out --output=job.txt {options}"
        ).strip()
    )


def state(host, job: str) -> str:
    """As accounting has it."""
    words = f"sacct --noheader --parsable2 --allocations --format=State --jobs={job}"
    return str(host.run(words).stdout.strip().split(" ")[0])


def queued(host, job: str) -> str:
    """As the controller has it, which knows at once."""
    return str(host.run(f"squeue --noheader --states=all --jobs={job} --format=%T").stdout.strip())


def test_a_job_of_an_ordinary_user_passes_both_prologs_and_the_epilog(host) -> None:
    for node in ("n1", "n2"):
        on(node, "rm -f /run/vendor-prolog-ran /run/kinemill/agent_missing")
        # a round of checks would write over the epilog's verdict, one that is under way too
        on(node, "systemctl stop kinemill-node-check.timer kinemill-node-check.service")
    try:
        job = submit(host, "--nodes=2 --gres=gpu:8 --wrap='srun hostname'")
        wait("job", lambda: state(host, job) == "COMPLETED")
        assert sorted(host.check_output("cat /shared/out/job.txt").split()) == ["n1", "n2"]
        # (asked of the controller: accounting may hear of the end of so short a job before it hears of its QOS)
        assert "Account=research QOS=train" in host.check_output(f"scontrol --oneliner show job {job}")
        for node in ("n1", "n2"):
            on(node, "test -e /run/vendor-prolog-ran")

            def verdict(node: str = node) -> bool:
                found = json.loads(on(node, "cat /run/kinemill/verdict.json"))
                return (found["context"], str(found["job_id"])) == ("epilog", job)

            wait("verdict of the epilog", verdict)
            on(node, "test ! -e /run/kinemill/agent_missing")
    finally:
        for node in ("n1", "n2"):
            on(node, "systemctl start kinemill-node-check.timer")


def test_a_node_that_lost_a_gpu_refuses_the_job_in_the_prolog_and_it_runs_elsewhere(host) -> None:
    # given a node whose timer is silent, so that only the prolog can find the fault
    on("n1", "systemctl stop kinemill-node-check.timer kinemill-node-check.service")
    gpu = ["kinemill", "sandbox", "gpu"]
    subprocess.run([*gpu, "set", "n1", "gpu1.lost=1"], check=True, timeout=300)
    try:
        # when a job comes to it
        job = submit(host, "--nodelist=n1 --gres=gpu:8 --wrap=true")
        wait("drain", lambda: "drain" in on("ctl", "sinfo --noheader --nodes=n1 --format=%T"))
        # then Slurm says that the prolog refused it, and the job waits for another try
        reason = on("ctl", "sinfo --noheader --nodes=n1 --format=%E")
        assert "Prolog error" in reason or "kinemill1|gpu.count|T|" in reason
        wait("the job's next try", lambda: queued(host, job) == "PENDING")
        host.check_output(f"scontrol update jobid={job} reqnodelist=")
        wait("job on the other node", lambda: state(host, job) == "COMPLETED")
        assert "n2" in host.check_output(f"sacct --noheader --parsable2 --allocations --format=NodeList --jobs={job}")
    finally:
        subprocess.run([*gpu, "set", "n1", "gpu1.lost=0"], check=True, timeout=300)
        on("n1", "systemctl start kinemill-node-check.timer")
        on("ctl", "scontrol update nodename=n1 state=resume", check=False)
    wait("n1 back", lambda: on("ctl", "sinfo --noheader --nodes=n1 --format=%T") == "idle\n")


def test_the_policy_is_in_force_beside_the_vendors_settings(host) -> None:
    config = host.check_output("scontrol show config")
    assert "preempt/qos" in config
    assert "/etc/slurm/prolog.d/*.sh" in config
    qos = host.check_output("sacctmgr --noheader --parsable2 show qos format=name,preempt,gracetime")
    assert {"eval|pretrain|00:00:00", "pretrain||00:00:20"} <= set(qos.splitlines())
