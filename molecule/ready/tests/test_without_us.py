"""Last of all we go again: the vendor's Slurm runs on with the vendor's files, and so does a job.

Its name keeps it behind the tests that need us.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
NODES = ("ctl", "n1", "n2")
OURS = (
    "ls -d /opt/kinemill /etc/kinemill/agents.toml /run/kinemill /etc/systemd/system/kinemill-node* 2>/dev/null; true"
)


def on(node: str, command: str, *, check: bool = True) -> str:
    """Output of a command on a node."""
    words = ["kinemill", "sandbox", "exec", node, "--", "/bin/sh", "-c", command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout.strip()


def wait(what: str, ready: Callable[[], bool], *, deadline_s: float = 300) -> None:
    """Ask until it is so."""
    end = time.monotonic() + deadline_s
    while not ready():
        assert time.monotonic() < end, (
            f"{what}: not after {deadline_s:.0f} s\n{on('ctl', 'squeue; sinfo -R; sinfo -N')}"
        )
        time.sleep(0.5)


def idle() -> bool:
    return set(on("ctl", "sinfo --noheader --Node --format=%T", check=False).split()) == {"idle"}


def submit(options: str) -> str:
    return on("ctl", f"runuser -u researcher -- sbatch --parsable --chdir=/tmp --output=/dev/null {options}")


def state(job: str) -> str:
    return on("ctl", f"squeue --noheader --states=all --jobs={job} --format=%T", check=False)


def uninstall() -> str:
    command = ["ansible-playbook", "playbooks/adhoc/uninstall.yml", "--inventory=molecule/ready/inventory"]
    # The repository's own settings, not those that molecule made for its scenario.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(
        [*command, "--extra-vars=adhoc_confirm=readyvendor"],
        cwd=REPO, env={**plain, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


def changed(output: str) -> set[str]:
    """Hosts that a run changed."""
    return {
        host for host, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", output, re.MULTILINE) if count != "0"
    }


def test_we_go_and_the_vendors_slurm_its_files_and_a_job_stay() -> None:
    # given a job that runs
    wait("all nodes idle", idle)
    job = submit("--nodelist=n1 --gres=gpu:1 --wrap='sleep 3000'")
    try:
        wait("the job runs", lambda: state(job) == "RUNNING")
        # when we are taken off, then every host loses something, and a second run finds nothing
        assert changed(uninstall()) == set(NODES)
        assert changed(uninstall()) == set()
        # then the vendor's files are as they were handed over, and of ours only words are left
        for node in NODES:
            assert on(node, "sha256sum --check --quiet /var/lib/vendor.sha256") == ""
            assert on(node, OURS) == ""
            kept = set(re.findall(r"/etc/slurm/\S+", on(node, "cat /var/lib/vendor.sha256")))
            assert set(on(node, "find /etc/slurm -type f").split()) - kept == {"/etc/slurm/site.conf"}
            assert all(line.startswith("#") for line in on(node, "cat /etc/slurm/site.conf").splitlines())
        config = on("ctl", "scontrol show config")
        assert "/etc/slurm/prolog.d/*.sh" in config
        assert "kinemill" not in config
        assert "preempt/qos" not in config
        # and its daemons run, none of them anew, as does the job
        for node, daemons in (("ctl", "slurmctld slurmdbd"), ("n1", "slurmd"), ("n2", "slurmd")):
            shown = on(node, f"systemctl is-active {daemons}; systemctl show --property=NRestarts --value {daemons}")
            assert set(shown.split()) == {"active", "0"}, shown
        assert state(job) == "RUNNING"
        assert "Restarts=0" in on("ctl", f"scontrol --oneliner show job {job}")
        # and another one passes the vendor's prolog
        on("n2", "rm -f /run/vendor-prolog-ran")
        later = submit("--nodelist=n2 --gres=gpu:8 --wrap=true")
        wait("a later job", lambda: state(later) == "COMPLETED")
        on("n2", "test -e /run/vendor-prolog-ran")
    finally:
        on("ctl", f"scancel {job}", check=False)
    wait("the job's end", lambda: state(job) == "CANCELLED")
