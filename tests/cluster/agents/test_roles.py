"""Roles node_agents and slurm_hooks on real nodes: what they install runs, and a second run changes nothing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from support.agents_live import Agents
from support.cluster import wait_for

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

REPO = Path(__file__).resolve().parents[3]
FACTS = {"sku": "h200-8", "gpus": 8, "infiniband_ports": 8, "nvme_devices": 2, "scratch_dirs": ["/tmp", "/var"]}


@pytest.mark.full("agents")
@pytest.mark.parametrize("suite", ["bookworm", "trixie"])
def test_the_roles_install_what_runs_and_change_nothing_twice(
    slurm_cluster: Callable[..., Cluster], agents_site: Path, tmp_path: Path, suite: str
) -> None:
    # given nodes with the agents' venv, as role python_artifact leaves it
    cluster = slurm_cluster(suite)
    agents = Agents(cluster, agents_site)
    for node in cluster.computes:
        agents.venv(node)
        agents.forget(node)
    play = {
        "name": "Agents",
        "hosts": "all",
        "gather_facts": False,
        "roles": ["platform_defaults", "node_agents", "slurm_hooks"],
        "vars": {
            "node_agents_hardware": FACTS,
            "node_agents_probe_root": "/opt/kinemill-stand-ins/root",
            "node_agents_kernel_log": "/opt/kinemill-stand-ins/kmsg",
            "node_agents_textfile_dir": "/var/lib/kinemill/metrics",
            "node_agents_min_free_percent": 0.5,
            "node_agents_min_free_inodes_percent": 0.0,
        },
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    hosts = {node: {"ansible_python_interpreter": "/usr/bin/python3"} for node in cluster.computes}
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))

    def run() -> str:
        done = subprocess.run(
            [
                str(Path(sys.executable).parent / "ansible-playbook"),
                "-i",
                str(tmp_path / "hosts.yml"),
                str(tmp_path / "play.yml"),
            ],
            env={
                **os.environ,
                "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
                "ANSIBLE_ROLES_PATH": str(REPO / "roles"),
                "ANSIBLE_SSH_ARGS": f"-F {cluster.box.places.ssh_config}",
                "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
                "ANSIBLE_NOCOLOR": "1",
            },
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done.stdout

    # when the roles run twice
    run()
    second = run()
    # then the second run changed nothing
    assert re.findall(r"changed=(\d+)", second) == ["0"] * len(hosts), second[-4000:]
    # and the node judges itself by its timer, silently
    box = cluster.box
    metrics = box.root("n1") / "var/lib/kinemill/metrics/kinemill_node.prom"
    wait_for("the timer's first round", metrics.is_file, deadline_s=120)
    assert box.exec("n1", ["systemctl", "is-enabled", "kinemill-node-boot.service"]).stdout.strip() == "enabled"
    done = box.exec("n1", ["/opt/kinemill/agents/current/bin/kinemill-node", "check", "--json"], check=False)
    assert {r["status"] for r in json.loads(done.stdout)["results"]} <= {"OK", "SKIP", "WARN"}, done.stdout
    # and the hooks refuse on a fault, as Slurm would call them
    agents.gpu("n1", gpu1__lost="1")
    for hook, code in (("prolog", 1), ("healthcheck", 0)):
        found = box.exec("n1", ["env", "-i", "SLURM_JOB_ID=1", f"/opt/kinemill/hooks/{hook}"], check=False)
        assert found.returncode == code, found.stderr
    assert "|gpu.count|T|gpu_lost|" in wait_for("reason", lambda: cluster.node("n1").get("Reason"), deadline_s=120)


@pytest.mark.full("agents")
def test_a_reboot_begins_anew_and_is_judged_before_slurm(
    slurm_cluster: Callable[..., Cluster], agents_site: Path
) -> None:
    """Old kernel messages and counters end with the boot; the boot unit has judged before slurmd takes jobs."""
    from kinemill.control.sandbox import faults, standins

    cluster = slurm_cluster("trixie")
    agents = Agents(cluster, agents_site)
    for node in cluster.computes:
        agents.install(node)
        agents.forget(node)
    box = cluster.box
    box.exec("n1", ["systemctl", "enable", "kinemill-node-boot.service", "kinemill-node-check.timer"])
    standins.kernel_message(box.stand_ins("n1"), "NVRM: Xid (PCI:0000:1b:00): 79, GPU has fallen off the bus.")
    box.exec("n1", ["systemctl", "start", "kinemill-node-check.service"])
    assert "|gpu.xid|T|xid_79|" in cluster.node("n1")["Reason"]
    faults.reboot(box, "n1")
    wait_for(
        "the first verdict",
        lambda: box.exec("n1", ["test", "-e", "/run/kinemill/verdict.json"], check=False).returncode == 0,
    )
    wait_for(
        "slurmd", lambda: box.exec("n1", ["systemctl", "is-active", "slurmd"], check=False).stdout.strip() == "active"
    )
    order = box.exec(
        "n1", ["systemctl", "show", "kinemill-node-boot", "slurmd", "--property=ExecMainStartTimestampMonotonic"]
    )
    first, then = (int(line.split("=")[1]) for line in order.stdout.split() if "=" in line)
    assert first < then
    fault = json.loads(agents.read("n1", "/var/lib/kinemill/agents/fault.json"))["fault"]
    assert fault["passes"] >= 1, "the message is gone with the boot, and the rounds are clean"


@pytest.mark.parametrize("suite", ["trixie"])
def test_without_root_it_says_what_it_cannot_see(
    slurm_cluster: Callable[..., Cluster], agents_site: Path, suite: str
) -> None:
    cluster = slurm_cluster(suite)
    agents = Agents(cluster, agents_site)
    agents.install("n1", hooks=False)  # Slurm's health check is root's, and leaves something behind
    agents.forget("n1")
    log = cluster.box.stand_ins("n1") / "kmsg"
    log.chmod(0o600)
    try:
        words = [
            "runuser",
            "-u",
            "researcher",
            "--",
            "/opt/kinemill/agents/current/bin/kinemill-node",
            "check",
            "--json",
        ]
        done = cluster.box.exec("n1", words, check=False)
    finally:
        log.chmod(0o644)
    results = {r["check"]: r for r in json.loads(done.stdout)["results"]}
    assert done.returncode == 1
    assert (results["gpu.xid"]["status"], results["kernel.log"]["status"]) == ("UNKNOWN", "UNKNOWN")
    assert "kernel log not read" in results["gpu.xid"]["detail"]
    assert results["gpu.ecc"]["status"] == "OK"
    assert not (cluster.box.root("n1") / "var/lib/kinemill").exists(), "a person's look leaves nothing behind"
