"""Every role's verify fails when what it looks after has stopped."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parents[3]

CURRENT = "/opt/kinemill/agents/current"
QOS = "sacctmgr --immediate modify qos where name=pretrain set"
NVML = f"/usr/lib/{os.uname().machine}-linux-gnu/libnvidia-ml.so.1"

# role, node, how to break it, how to mend it
BREAKS = [
    ("slurm_node", "n1", "systemctl stop slurmd", "systemctl start slurmd"),
    ("munge", "n2", "systemctl stop munge", "systemctl start munge"),
    ("firewall", "n1", "systemctl stop kinemill-firewall", "systemctl start kinemill-firewall"),
    ("slurm_controller", "ctl", "systemctl stop slurmdbd", "systemctl start slurmdbd"),
    ("shared_storage", "n2", "mount --types tmpfs none /shared", "umount --lazy /shared"),
    ("slurm_hooks", "n2", "chmod 644 /opt/kinemill/hooks/epilog", "chmod 755 /opt/kinemill/hooks/epilog"),
    (
        "base",
        "n1",
        "mv /etc/ssh/sshd_config.d/10-kinemill.conf /opt/",
        "mv /opt/10-kinemill.conf /etc/ssh/sshd_config.d/",
    ),
    ("slurm_policy", "ctl", f"{QOS} gracetime=5", f"{QOS} gracetime=20"),
    ("python_artifact", "n2", f"mv {CURRENT} /opt/", f"mv /opt/current {CURRENT}"),
    ("node_agents", "n1", "systemctl stop kinemill-node-check.timer", "systemctl start kinemill-node-check.timer"),
    # The agents drain a node that they find without these two, so they come last.
    ("container_runtime", "n1", "mv /usr/local/bin/enroot /opt/", "mv /opt/enroot /usr/local/bin/"),
    ("gpu_driver", "n2", f"mv {NVML} /opt/", f"mv /opt/libnvidia-ml.so.1 {NVML}"),
]


def on(node: str, command: str) -> None:
    subprocess.run(["kinemill", "sandbox", "exec", node, "--", *command.split()], check=True, timeout=300)


def verify(role: str, *options: str) -> subprocess.CompletedProcess[str]:
    """A role's own look at what it made."""
    command = ["ansible-playbook", "site.yml", "--inventory=inventories/sandbox", f"--tags={role}_verify"]
    return subprocess.run([*command, *options], cwd=REPO, capture_output=True, text=True, timeout=600, check=False)


@pytest.mark.parametrize(("role", "node", "broken", "mended"), BREAKS, ids=[one[0] for one in BREAKS])
def test_verify_fails_on_what_is_stopped(role: str, node: str, broken: str, mended: str) -> None:
    on(node, broken)
    try:
        done = verify(role, f"--limit={node}")
    finally:
        on(node, mended)
    assert done.returncode == 2, done.stdout + done.stderr
    assert f"TASK [{role} : " in done.stdout


def test_verify_fails_on_a_wheelhouse_that_is_gone(tmp_path: Path) -> None:
    wheels = tmp_path / "agents" / "1"
    wheels.mkdir(parents=True)
    (tmp_path / "agents" / "current.json").write_text(json.dumps({"version": "1", "path": str(wheels)}))
    look = functools.partial(verify, "wheelhouse", f"--extra-vars=wheelhouse_dir={tmp_path}")
    whole = look()
    assert whole.returncode == 0, whole.stdout + whole.stderr
    assert "TASK [wheelhouse : " in whole.stdout
    wheels.rmdir()
    gone = look()
    assert gone.returncode == 2, gone.stdout + gone.stderr
    assert "TASK [wheelhouse : " in gone.stdout
