"""Every role's verify fails when what it looks after has stopped, whoever brought it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

# role, node, what is stopped
BREAKS = [
    ("slurm_node", "n1", "slurmd"),
    ("munge", "n2", "munge"),
    ("slurm_controller", "ctl", "slurmctld"),
]


def systemctl(node: str, verb: str, unit: str) -> None:
    subprocess.run(["kinemill", "sandbox", "exec", node, "--", "systemctl", verb, unit], check=True, timeout=300)


@pytest.mark.parametrize(("role", "node", "unit"), BREAKS, ids=[one[0] for one in BREAKS])
def test_verify_fails_on_what_is_stopped(role: str, node: str, unit: str) -> None:
    command = ["ansible-playbook", "site.yml", "--inventory=molecule/ready/inventory", f"--tags={role}_verify"]
    systemctl(node, "stop", unit)
    try:
        done = subprocess.run(
            [*command, f"--limit={node}"], cwd=REPO, capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        systemctl(node, "start", unit)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"TASK [{role} : " in done.stdout
