"""A run that takes every GPU yields to an evaluation, saves, and is requeued."""

from __future__ import annotations

import os
import time

SANDBOXES = os.environ.get("KINEMILL_SANDBOX_STATE", "/run/kinemill/sandbox")
# Straight over ssh: the inventory's own arguments hold templates, which only Ansible resolves.
SETTINGS = f"{SANDBOXES}/by-name/{os.environ['KINEMILL_SANDBOX']}/ssh_config"
testinfra_hosts = [f"ssh://root@ctl?ssh_config={SETTINGS}"]

# Told to yield, it writes how far it came; Slurm ends it when the grace time is over.
PRETRAIN = """#!/bin/bash
step=1
trap 'echo $step >/shared/policy/saved' TERM
touch /shared/policy/began
while :; do step=$((step + 1)); sleep 0.2; done
"""


def submit(host, options: str) -> str:
    command = f"sbatch --parsable --chdir=/shared/policy --output=/dev/null {options}"
    return str(host.check_output(f"runuser -u researcher -- {command}").strip())


def wait(host, what: str, command: str, wanted: str, *, deadline_s: float = 600) -> float:
    """Seconds until a command prints this."""
    started = time.monotonic()
    while wanted not in host.run(command).stdout:
        waited = time.monotonic() - started
        shown = host.run("squeue --long; sinfo; tail -20 /var/log/slurm/slurmctld.log").stdout
        assert waited < deadline_s, f"{what}: not after {waited:.0f} s\n{shown}"
        time.sleep(0.5)
    return time.monotonic() - started


def test_an_evaluation_starts_on_a_full_cluster(host) -> None:
    # given a pretraining run on every node
    host.check_output("install -d -o researcher /shared/policy")
    host.check_output(f"cat >/shared/policy/pretrain.sh <<'END'\n{PRETRAIN}END")
    big = submit(
        host, "--qos=pretrain --nodes=2 --gres=gpu:8 --exclusive --signal=B:TERM@30 /shared/policy/pretrain.sh"
    )
    small = ""
    try:
        wait(host, "pretraining", f"squeue --noheader --jobs={big} --format=%T", "RUNNING")
        # (Slurm says so before the script has said how it wants to be told)
        wait(host, "the script itself", "ls /shared/policy", "began")
        # when an evaluation comes
        small = submit(host, "--qos=eval --gres=gpu:1 --wrap='sleep 600'")
        waited = wait(host, "evaluation", f"squeue --noheader --jobs={small} --format=%T", "RUNNING")
        # then it starts on the first node that is free; the run has saved, and waits once it has left the other
        print(f"the evaluation waited {waited:.0f} s")
        wait(host, "its save", "grep --only-matching '^[1-9]' /shared/policy/saved | wc --lines", "1")
        wait(host, "the run's turn", f"squeue --noheader --jobs={big} --format=%T", "PENDING")
        wait(host, "its requeue", f"scontrol --oneliner show job {big}", "Restarts=1")
    finally:
        host.run(f"scancel {big} {small}")
