"""The compute nodes that one playbook left, seen from outside."""

from __future__ import annotations

import os

SANDBOXES = os.environ.get("KINEMILL_SANDBOX_STATE", "/run/kinemill/sandbox")
# Straight over ssh: the inventory's own arguments hold templates, which only Ansible resolves.
SETTINGS = f"{SANDBOXES}/by-name/{os.environ['KINEMILL_SANDBOX']}/ssh_config"
testinfra_hosts = [f"ssh://root@{node}?ssh_config={SETTINGS}" for node in ["n1", "n2"]]


def test_daemons_run_now_and_at_boot(host) -> None:
    for name in ("munge", "slurmd", "kinemill-node-check.timer"):
        service = host.service(name)
        assert service.is_running, name
        assert service.is_enabled, name


def test_the_munge_key_is_the_clusters_and_munges_alone(host) -> None:
    key = host.file("/etc/munge/munge.key")
    assert (key.mode, key.user, key.size) == (0o400, "munge", 256)


def test_no_node_was_drained_and_its_hooks_are_in_place(host) -> None:
    name = host.check_output("hostname")
    assert host.check_output(f"sinfo --noheader --nodes={name} --format=%E").strip() == "none"
    prolog = host.file("/opt/kinemill/hooks/prolog")
    assert (prolog.mode, prolog.user) == (0o755, "root")
    # the agent judged this node for a job, so the verdict of the prolog is there and no agent was missing
    assert not host.file("/run/kinemill/agent_missing").exists
