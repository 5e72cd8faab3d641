"""A node that contradicts its inventory is refused before anything is changed: its name, the fact, and what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).resolve().parents[3]
SANDBOX = os.environ["KINEMILL_SANDBOX"]
OLD_SLURM = "#!/bin/sh\n[ \"$1\" = -V ] && echo 'slurm 21.08.8'\n"


def kinemill(*words: str) -> None:
    subprocess.run(["kinemill", "sandbox", *words], check=True, timeout=300, capture_output=True)


@pytest.fixture(scope="module")
def bare_node() -> str:
    """A node with an image of Debian 12 and nothing else, beside the vendor's."""
    kinemill("up", "--nodes=n9", "--image=bookworm", "--offline")
    return "n9"


@pytest.fixture
def inventory(bare_node: str, tmp_path: Path) -> Path:
    """The scenario's inventory with the bare node among the compute nodes."""
    copied = Path(shutil.copytree(REPO / "molecule" / "ready" / "inventory", tmp_path / "inventory"))
    hosts = yaml.safe_load((copied / "hosts.yml").read_text())
    hosts["all"]["children"]["slurm_nodes"]["hosts"] = {"n1": None, bare_node: None}
    (copied / "hosts.yml").write_text(yaml.safe_dump(hosts))
    return copied


def run(inventory: Path, playbook: str, *options: str) -> str:
    """What Ansible says about an inventory that is refused."""
    command = ["ansible-playbook", f"playbooks/{playbook}.yml", f"--inventory={inventory}", *options]
    # The repository's own settings, not those that molecule made for its scenario.
    plain = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    done = subprocess.run(command, cwd=REPO, env=plain, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "changed=0" in done.stdout
    assert not any(f"changed={count}" in done.stdout for count in range(1, 9)), done.stdout
    return " ".join(done.stdout.split())


def test_slurm_that_is_stated_and_not_there(inventory: Path) -> None:
    said = run(inventory, "base", "--tags=base_preflight")
    assert "n9: vendor_provides names slurm, but nothing of it is here" in said
    assert "install it or take it off the list" in said
    assert "n9: vendor_provides names munge, but nothing of it is here" in said
    assert "n1: " not in said


def test_slurm_that_is_there_and_not_stated_and_a_key_that_came_with_an_image(inventory: Path) -> None:
    (inventory / "group_vars/all/vendor.yml").write_text("vendor_provides: [driver, containers, time]\n")
    kinemill("exec", "n9", "--", "sh", "-c", "mkdir -p /etc/munge; echo everybody-knows-it >/etc/munge/munge.key")
    try:
        said = run(inventory, "base", "--tags=base_preflight")
    finally:
        kinemill("exec", "n9", "--", "rm", "-r", "/etc/munge")
    assert "n1: slurm was here before us, but vendor_provides does not name it" in said
    assert "ctl: slurm was here before us" in said
    assert "n9: munge was here before us" in said
    assert "n9: slurm" not in said


def test_an_older_slurm_and_another_id_of_its_user(inventory: Path) -> None:
    kinemill("exec", "n9", "--", "sh", "-c", "groupadd -g 991 slurm; useradd -u 991 -g 991 slurm")
    script = f"cat >/usr/sbin/slurmd <<'END'\n{OLD_SLURM}END\nchmod 755 /usr/sbin/slurmd"
    kinemill("exec", "n9", "--", "sh", "-c", script)
    try:
        said = run(inventory, "base", "--tags=base_preflight")
    finally:
        kinemill("exec", "n9", "--", "sh", "-c", "rm /usr/sbin/slurmd; userdel slurm")
    assert "n9: slurmd is Slurm 21.08.8, the oldest that is supported is 22.05" in said
    assert "n9: vendor_provides names slurm, but slurmd does not run" in said
    assert "n9: user slurm has or will have uid 991 here, 64030 on the controller" in said


def test_a_slurm_that_is_another_cluster(inventory: Path) -> None:
    wrong = ["--limit=ctl,n1", "--extra-vars=slurm_controller_cluster_name=elsewhere"]
    said = run(inventory, "slurm", *wrong)
    assert "ctl: the Slurm that answers is cluster 'readyvendor', the inventory's is 'elsewhere'" in said
