"""`kinemill deploy` on real nodes: what an operator meets on a bad day, told before or after, never in between."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from support.ansible import REPO
from support.cluster import need_sandbox, wait_for

if TYPE_CHECKING:
    from kinemill.control.sandbox.box import Sandbox

pytestmark = pytest.mark.full("cluster")

HALF_WAY = """\
- name: Half a way
  hosts: all
  gather_facts: false
  tasks:
    - name: Begin
      ansible.builtin.file: {path: /var/tmp/begun, state: touch, mode: "0600"}
    - name: Wait for the other hand
      ansible.builtin.wait_for: {path: "{{ half_way_go }}", timeout: 900, sleep: 1}
      delegate_to: localhost
      connection: local
      run_once: true
      become: false
    - name: End
      ansible.builtin.file: {path: /var/tmp/ended, state: touch, mode: "0600"}
"""


class Desk:
    """An operator's desk: an inventory of the nodes, and the command."""

    def __init__(self, box: Sandbox, folder: Path, nodes: list[str]) -> None:
        self.box, self.folder = box, folder
        settings = f"-F {box.places.ssh_config}"
        self.variables: dict[str, Any] = {
            "ansible_user": "root",
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_extra_args": settings,
            "ansible_sftp_extra_args": settings,
            # Nodes of other sandboxes have the same names.
            "ansible_control_path_dir": f"~/.ansible/cp-{box.name}",
            "kinemill_become": False,
            "vendor_name": "desk",
            "vendor_provides": ["driver", "containers", "time", "firewall"],
            "slurm_controller_nodes": [{"name": "n[1-2]", "cpus": 16, "memory_mb": 64000}],
        }
        groups = {"slurm_controllers": nodes[:1], "slurm_nodes": nodes[1:]}
        children = {group: {"hosts": {node: {} for node in members}} for group, members in groups.items()}
        self.inventory = {"all": {"children": children, "vars": self.variables}}

    def start(self, *arguments: str, playbook: str = "playbooks/base.yml") -> subprocess.Popen[str]:
        (self.folder / "inventory").mkdir(exist_ok=True)
        (self.folder / "inventory" / "hosts.yml").write_text(yaml.safe_dump(self.inventory), encoding="utf-8")
        command = [sys.executable, "-c", "from kinemill.cli import main; main()", "deploy"]
        command += [str(self.folder / "inventory"), "--playbook", playbook, "--json", *arguments]
        environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
        environment |= {
            "KINEMILL_DEPLOY_RUNS": str(self.folder / "runs"),
            "KINEMILL_DEPLOY_LOCKS": str(self.folder / "locks"),
        }
        return subprocess.Popen(
            command, cwd=REPO, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip

    def finish(self, process: subprocess.Popen[str]) -> tuple[int, dict[str, Any]]:
        try:
            out, err = process.communicate(timeout=900)
        finally:
            process.kill()
        assert out, err[-4000:]
        return process.returncode, json.loads(out)

    def deploy(self, *arguments: str, playbook: str = "playbooks/base.yml") -> tuple[int, dict[str, Any]]:
        return self.finish(self.start(*arguments, playbook=playbook))


def there(box: Sandbox, node: str, path: str, process: subprocess.Popen[str] | None = None) -> bool:
    """Whether a node has a file; a process that was to make it must not have ended."""
    assert process is None or process.poll() is None, process.communicate()
    return box.exec(node, ["test", "-e", path], check=False).returncode == 0


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """Three bare nodes and an inventory of them."""
    need_sandbox()
    from kinemill.control.sandbox.box import Sandbox
    from kinemill.control.sandbox.furnish import NodeSpec
    from kinemill.control.sandbox.standins import Hardware

    names = ["ctl", "n1", "n2"]
    specs = [NodeSpec(name, image="bookworm", hardware=Hardware(gpus=8) if name != "ctl" else None) for name in names]
    box = Sandbox.up(specs, name=f"k{os.getpid() % 10**6}", owned=True)
    try:
        yield Desk(box, tmp_path, names)
    finally:
        box.down()


def test_what_is_wrong_with_the_nodes_is_told_at_once(desk: Desk) -> None:
    from kinemill.control.sandbox import faults

    # given a node under another name, one with a full disk, and one without power
    desk.box.exec("ctl", ["hostname", "somebody-else"])
    faults.fill_disk(desk.box, "n1", leave_bytes=0)
    faults.cut(desk.box, "n2")
    # when they are deployed
    code, record = desk.deploy()
    # then all of it is told and nothing was touched
    told = dict.fromkeys(("ctl", "n1", "n2"), "")
    for finding in record["findings"]:
        told[finding["where"]] += finding["message"]
    assert code == 1, record
    assert record["state"] == "refused"
    assert "calls itself 'somebody-else'" in told["ctl"]
    assert "/ is full" in told["n1"]
    assert "cannot be reached" in told["n2"] or "did not answer" in told["n2"]
    assert record["hosts"] == {}
    assert not there(desk.box, "ctl", "/var/lib/kinemill")


def test_a_mirror_that_is_down_is_told_and_the_next_run_goes_on(desk: Desk) -> None:
    from kinemill.control.sandbox import faults

    # given nodes without a way to packages
    desk.variables["base_packages"] = ["jq"]
    faults.proxy(desk.box, on=False)
    # when they are deployed, the mirror is named as the cause, and trying again may help
    code, record = desk.deploy()
    assert code == 75, record
    assert {failure["meaning"] for failure in record["failures"]} == {"the package mirror does not answer"}
    # then the same command goes on when it is back
    faults.proxy(desk.box, on=True)
    code, record = desk.deploy()
    assert code == 0, record
    assert record["state"] == "deployed"
    # and once more changes nothing, as a check says too
    for arguments in ((), ("--check",)):
        code, record = desk.deploy(*arguments)
        assert (code, {line["changed"] for line in record["hosts"].values()}) == (0, {0}), record


def test_a_node_lost_half_way_does_not_stop_the_others(desk: Desk) -> None:
    from kinemill.control.sandbox import faults

    # given a run that has begun on all nodes
    playbook = desk.folder / "half.yml"
    playbook.write_text(HALF_WAY.replace("{{ half_way_go }}", str(desk.folder / "go")), encoding="utf-8")
    process = desk.start(playbook=str(playbook))
    for node in ("ctl", "n1", "n2"):
        wait_for(
            f"{node} has begun",
            functools.partial(there, desk.box, node, "/var/tmp/begun", process),
            deadline_s=300,
        )
    # when one loses its power
    faults.cut(desk.box, "n2")
    (desk.folder / "go").touch()
    code, record = desk.finish(process)
    # then the others are done, and the record says who is not
    assert code == 75, record
    assert [(failure["host"], failure["kind"]) for failure in record["failures"]] == [("n2", "unreachable")]
    for node in ("ctl", "n1"):
        assert there(desk.box, node, "/var/tmp/ended")
    # and with the power back the same command ends what is left
    desk.box.on("n2")
    code, record = desk.deploy(playbook=str(playbook))
    assert code == 0, record
    assert there(desk.box, "n2", "/var/tmp/ended")
