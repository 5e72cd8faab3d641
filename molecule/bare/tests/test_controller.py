"""The controller that one playbook left, seen from outside."""

from __future__ import annotations

import os
import time

SANDBOXES = os.environ.get("KINEMILL_SANDBOX_STATE", "/run/kinemill/sandbox")
# Straight over ssh: the inventory's own arguments hold templates, which only Ansible resolves.
SETTINGS = f"{SANDBOXES}/by-name/{os.environ['KINEMILL_SANDBOX']}/ssh_config"
testinfra_hosts = [f"ssh://root@{node}?ssh_config={SETTINGS}" for node in ["ctl"]]

DONE = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"}


def wait(host, job: str) -> str:
    """State of a job at its end, as accounting has it."""
    end = time.monotonic() + 300
    while time.monotonic() < end:
        # (accounting may not have heard of the job yet, or be busy)
        state = host.run(f"sacct --noheader --parsable2 --allocations --format=State --jobs={job}").stdout.strip()
        if state.split(" ")[0] in DONE:
            return state
        time.sleep(0.5)
    return host.check_output("squeue; sinfo --list-reasons; tail -20 /var/log/slurm/slurmctld.log")


def test_a_job_of_an_ordinary_user_runs_on_all_gpus_through_prolog_and_epilog(host) -> None:
    script = "printf '#!/bin/sh\\nsrun sh -c \"echo \\$SLURMD_NODENAME \\$CUDA_VISIBLE_DEVICES\"\\n' >/shared/job.sh"
    host.check_output(f"{script}; install -d -o researcher /shared/out")
    submit = "sbatch --parsable --wait-all-nodes=1 --nodes=2 --gres=gpu:8 --chdir=/shared/out --output=job.txt"
    job = host.check_output(f"runuser -u researcher -- {submit} /shared/job.sh").strip()
    assert wait(host, job) == "COMPLETED"
    lines = sorted(host.check_output("cat /shared/out/job.txt").splitlines())
    assert lines == ["n1 0,1,2,3,4,5,6,7", "n2 0,1,2,3,4,5,6,7"]
    # and it went under the account and the QOS that the inventory gives its user
    # (asked of the controller: accounting may hear of the end of so short a job before it hears of its QOS)
    assert "Account=research QOS=train" in host.check_output(f"scontrol --oneliner show job {job}")


def test_the_policy_is_in_force(host) -> None:
    config = host.check_output("scontrol show config")
    assert "preempt/qos" in config
    qos = host.check_output("sacctmgr --noheader --parsable2 show qos format=name,preempt,gracetime,grptres")
    assert {"eval|pretrain|00:00:00|", "pretrain||00:00:20|gres/gpu=16"} <= set(qos.splitlines())


def test_a_user_without_an_account_gets_nothing(host) -> None:
    done = host.run("runuser -u nobody -- sbatch --wrap=true --chdir=/tmp --output=/dev/null")
    assert done.rc != 0
    assert "Invalid account" in done.stderr


def test_the_database_listens_on_no_address_and_slurmdbd_conf_is_slurms_alone(host) -> None:
    assert host.service("mariadb").is_running
    assert ":3306" not in host.check_output("ss --listening --tcp --numeric --no-header")
    settings = host.file("/etc/slurm/slurmdbd.conf")
    assert (settings.mode, settings.user) == (0o600, "slurm")


def test_the_munge_key_is_in_no_log_and_on_no_command_line(host) -> None:
    key = host.file("/var/lib/kinemill/munge.key")
    assert (key.mode, key.user) == (0o600, "root")
    # the first 32 digits are looked up by grep from a file, so that this test does not put them on one either
    host.check_output("head --bytes=32 /var/lib/kinemill/munge.key >/run/munge-head")
    assert host.run("journalctl --output=cat | grep --quiet --fixed-strings --file=/run/munge-head").rc == 1
    assert host.run("cat /proc/[0-9]*/cmdline | grep --quiet --text --fixed-strings --file=/run/munge-head").rc == 1
    host.check_output("rm /run/munge-head")
