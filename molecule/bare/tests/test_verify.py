"""Every role's verify fails when what it looks after has stopped."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

NVML = f"/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-ml.so.1"

# role, node, how to break it, how to mend it
BREAKS = [
    ("slurm_node", "n1", "systemctl stop slurmd", "systemctl start slurmd"),
    ("munge", "n2", "systemctl stop munge", "systemctl start munge"),
    ("firewall", "n1", "systemctl stop kinemill-firewall", "systemctl start kinemill-firewall"),
    ("slurm_controller", "ctl", "systemctl stop slurmdbd", "systemctl start slurmdbd"),
    ("shared_storage", "n2", "mount --types tmpfs none /shared", "umount /shared"),
    ("slurm_hooks", "n2", "chmod 644 /opt/kinemill/hooks/epilog", "chmod 755 /opt/kinemill/hooks/epilog"),
    ("node_agents", "n1", "systemctl stop kinemill-node-check.timer", "systemctl start kinemill-node-check.timer"),
    # The agents drain a node that they find without these two, so they come last.
    ("container_runtime", "n1", "mv /usr/local/bin/enroot /opt/", "mv /opt/enroot /usr/local/bin/"),
    ("gpu_driver", "n2", f"mv {NVML} /opt/", f"mv /opt/libnvidia-ml.so.1 {NVML}"),
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
