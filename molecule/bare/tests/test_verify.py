"""Every role's verify fails when what it looks after has stopped."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

# role, node, how to break it, how to mend it
BREAKS = [
    ("slurm_node", "n1", "systemctl stop slurmd", "systemctl start slurmd"),
    ("munge", "n2", "systemctl stop munge", "systemctl start munge"),
    ("slurm_controller", "ctl", "systemctl stop slurmdbd", "systemctl start slurmdbd"),
    ("shared_storage", "n2", "mount --types tmpfs none /shared", "umount /shared"),
]


def on(node: str, command: str) -> None:
    subprocess.run(["kinemill", "sandbox", "exec", node, "--", *command.split()], check=True, timeout=60)


@pytest.mark.parametrize(("role", "node", "broken", "mended"), BREAKS, ids=[one[0] for one in BREAKS])
def test_verify_fails_on_what_is_stopped(role: str, node: str, broken: str, mended: str) -> None:
    command = ["ansible-playbook", "site.yml", "--inventory=inventories/sandbox", f"--tags={role}_verify"]
    on(node, broken)
    try:
        done = subprocess.run(
            [*command, f"--limit={node}"], cwd=REPO, capture_output=True, text=True, timeout=300, check=False
        )
    finally:
        on(node, mended)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"TASK [{role} : " in done.stdout
