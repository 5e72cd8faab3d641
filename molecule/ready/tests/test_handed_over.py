"""What the vendor handed over is as it was, and what is ours stands beside it."""

from __future__ import annotations

import os

SANDBOXES = os.environ.get("KINEMILL_SANDBOX_STATE", "/run/kinemill/sandbox")
# Straight over ssh: the inventory's own arguments hold templates, which only Ansible resolves.
SETTINGS = f"{SANDBOXES}/by-name/{os.environ['KINEMILL_SANDBOX']}/ssh_config"
testinfra_hosts = [f"ssh://root@{node}?ssh_config={SETTINGS}" for node in ["ctl", "n1", "n2"]]


def test_no_file_of_the_vendors_and_no_package_changed(host) -> None:
    kept = host.file("/var/lib/vendor.sha256").content_string.splitlines()
    named = {line.split()[-1] for line in kept}
    assert {"/etc/slurm/slurm.conf", "/etc/munge/munge.key", "/var/lib/dpkg/status"} <= named
    assert "/etc/slurm/prolog.d/10-vendor.sh" in named
    done = host.run("sha256sum --check --quiet /var/lib/vendor.sha256")
    assert done.rc == 0, done.stdout


def test_nothing_stands_beside_the_vendors_files_but_what_says_that_it_is_ours(host) -> None:
    kept = {line.split()[-1] for line in host.file("/var/lib/vendor.sha256").content_string.splitlines()}
    now = set(host.check_output("find /etc/slurm -type f").split())
    added = now - kept - {"/etc/slurm/site.conf"}
    assert added == (set() if host.check_output("hostname") == "ctl" else {"/etc/slurm/prolog.d/50-kinemill.sh"})
    for path in [*added, "/etc/slurm/site.conf"]:
        assert "Written by Ansible" in host.file(path).content_string


def test_the_node_had_no_way_to_packages_and_no_ensurepip(host) -> None:
    assert not host.file("/etc/apt/sources.list").exists
    assert host.run("python3 -m ensurepip --version").rc != 0
    assert host.run("ip route show default").stdout == ""
    assert host.file("/opt/kinemill/agents/current").is_symlink
    version = "import sys; print('%d.%d' % sys.version_info[:2])"
    assert host.check_output(f'/opt/kinemill/agents/current/bin/python -c "{version}"').strip() == "3.13"


def test_what_needs_another_python_or_is_the_vendors_was_left_out(host) -> None:
    assert not host.file("/opt/kinemill/training").exists
    assert host.run("nft list table inet kinemill").rc != 0
    for unit in ("slurmctld", "slurmd"):
        assert not host.file(f"/etc/systemd/system/{unit}.service.d/kinemill.conf").exists
