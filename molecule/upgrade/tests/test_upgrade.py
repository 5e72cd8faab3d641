"""The agents up and back, and every playbook of playbooks/adhoc, one after the other on one cluster.

The order is that of this file; the scenario stops at the first that fails.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
EPHEMERAL = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"])
CURRENT = "/opt/kinemill/agents/current"
WHO = ["adhoc_who=anna", "adhoc_reason=smoke", "adhoc_wait_minutes=5"]
# Reads what a node of another release wrote, with the contracts of the controller's own.
READ = """
import sys
from kinemill.contracts.fleet import NodeReport, parse_reason
from kinemill.records import loads
from kinemill.slurm.cli import CliSlurm
(node,) = CliSlurm().nodes([sys.argv[1]])
event = parse_reason(node.reason)
print(event.check, loads(NodeReport, node.extra or node.comment).event == event.event)
"""


def on(node: str, *command: str, check: bool = True) -> str:
    """Run on a node; what it printed."""
    done = subprocess.run(
        ["kinemill", "sandbox", "exec", node, "--", *command], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0 or not check, done.stdout + done.stderr
    return done.stdout.strip()


def sandbox(*words: str) -> None:
    subprocess.run(["kinemill", "sandbox", *words], check=True, capture_output=True, timeout=300)


def run(playbook: str, *given: str, sources: str = "new", grown: bool = False, works: bool = True) -> str:
    """Run a playbook; what it printed."""
    inventories = ["--inventory=inventories/sandbox"]
    inventories += ["--inventory=molecule/upgrade/grown"] if grown else []
    said = [f"kinemill_build_dir={EPHEMERAL}/build", f"wheelhouse_repo={EPHEMERAL}/sources/{sources}", *given]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    done = subprocess.run(
        ["ansible-playbook", f"playbooks/{playbook}.yml", *inventories, *(f"--extra-vars={one}" for one in said)],
        cwd=REPO, env={**environment, "ANSIBLE_NOCOLOR": "1"}, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert (done.returncode == 0) is works, (done.stdout + done.stderr)[-8000:]
    return done.stdout + done.stderr


def adhoc(playbook: str, *given: str, sources: str = "new", grown: bool = False, works: bool = True) -> str:
    return run(f"adhoc/{playbook}", *given, sources=sources, grown=grown, works=works)


def changed(output: str) -> list[str]:
    """Hosts that a run changed."""
    return [
        host for host, count in re.findall(r"^(\S+) +: ok=\d+ +changed=(\d+)", output, re.MULTILINE) if count != "0"
    ]


def version(node: str) -> str:
    return on(node, "readlink", CURRENT).split("+")[0]


def versions() -> dict[str, str]:
    return {node: version(node) for node in ("ctl", "n1", "n2")}


def state(node: str) -> str:
    return on("ctl", "sinfo", "--noheader", f"--nodes={node}", "--format=%T %E")


def wait(what: str, ready: Callable[[], bool], deadline_s: float = 600) -> None:
    until = time.monotonic() + deadline_s
    while not ready():
        assert time.monotonic() < until, f"{what}: not after {deadline_s} s; {on('ctl', 'sinfo', '--Node', '--long')}"
        time.sleep(1)


def heal(node: str) -> None:
    """A clean round, back into service where an agent drained it, and a round that closes the fault."""
    clean_round(node)

    def well() -> bool:
        # A round that began before the fault was gone may drain the node late, so this is asked more than once.
        if "kinemill1|gpu." in state(node):
            on("ctl", "scontrol", "update", f"nodename={node}", "state=resume", check=False)
            clean_round(node)
        return state(node) == "idle none"

    wait(f"{node} in service", well)
    clean_round(node)


def clean_round(node: str) -> None:
    """A whole round of checks from now on: the first start may only join one that began before."""
    unit = "kinemill-node-check.service"
    for _ in range(2):
        # systemd refuses a unit that is started too often, as this one is on a quick machine
        on(node, "bash", "-c", f"systemctl reset-failed {unit}; systemctl start {unit}")


def submit(node: str) -> str:
    """A job of an ordinary user that runs until it is cancelled."""
    words = ["sbatch", "--parsable", f"--nodelist={node}", "--gres=gpu:1", "--chdir=/shared", "--output=/dev/null"]
    job = on("ctl", "runuser", "-u", "researcher", "--", *words, "--wrap=sleep 3000")
    wait(f"job {job}", lambda: running(job))
    return job


def running(job: str) -> bool:
    shown = on("ctl", "scontrol", "--oneliner", "show", "job", job)
    return "JobState=RUNNING" in shown and "Restarts=0" in shown


def test_the_release_before_runs() -> None:
    assert set(versions().values()) == {"0.0.9"}
    assert "(0.0.9)" in on("n1", "cat", "/etc/systemd/system/kinemill-node-check.timer")


def test_a_release_that_misjudges_nodes_stops_at_the_canary() -> None:
    said = adhoc("upgrade_agents", "adhoc_canary=n2", sources="bad", works=False)
    assert "gpu.pcie: OK before, FAIL now" in re.sub(r"\s+", " ", said)
    assert versions() == {"ctl": "0.2.0", "n1": "0.0.9", "n2": "0.0.9"}
    assert "# Release 0.0.9." in on("n2", "cat", "/opt/kinemill/hooks/prolog")
    assert "n1" not in changed(said)
    # the timer may have drained it meanwhile, as it would any faulty node; the old agents find it well again
    heal("n2")


def test_a_controller_of_this_release_understands_nodes_of_the_one_before() -> None:
    adhoc("upgrade_agents", "adhoc_nodes=n1")
    assert versions() == {"ctl": "0.1.0", "n1": "0.1.0", "n2": "0.0.9"}
    try:
        sandbox("gpu", "set", "n2", "gpu1.lost=1")
        on("n2", "systemctl", "start", "kinemill-node-check.service")
        wait("drain by the old agents", lambda: "|gpu.count|T|gpu_lost|" in state("n2"))
        read = (f"{CURRENT}/bin/python", "-I", "-c", READ, "n2")
        wait("a report of the same event", lambda: on("ctl", *read, check=False) == "gpu.count True")
    finally:
        sandbox("gpu", "set", "n2", "gpu1.lost=")
    heal("n2")


def test_all_go_up_under_a_running_job_and_a_second_run_changes_nothing() -> None:
    job = submit("n2")
    on("ctl", "scontrol", "update", "nodename=n1", "state=drain", "reason=do not touch")
    adhoc("upgrade_agents")
    assert set(versions().values()) == {"0.1.0"}
    assert "0.0.9" not in on("n2", "cat", "/opt/kinemill/hooks/prolog", "/etc/systemd/system/kinemill-node-check.timer")
    assert changed(adhoc("upgrade_agents")) == []
    assert running(job)
    assert state("n1") == "drained do not touch"
    on("ctl", "scontrol", "update", "nodename=n1", "state=resume")
    on("ctl", "scancel", job)


def test_back_is_one_step_and_takes_units_and_hooks_along() -> None:
    adhoc("rollback_agents")
    assert set(versions().values()) == {"0.0.9"}
    assert "# Release 0.0.9." in on("n2", "cat", "/opt/kinemill/hooks/prolog")
    assert "(0.0.9)" in on("n2", "cat", "/etc/systemd/system/kinemill-node-check.timer")


def test_a_persons_drain_says_who_and_is_lifted_by_nobody_else() -> None:
    wait("n1 in service", lambda: state("n1") == "idle none")
    said = adhoc("drain", "adhoc_nodes=n1", "adhoc_until=2999-01-31", *WHO)
    assert re.search(r"drain [0-9a-f]{8}: n1 drained", said)
    assert re.fullmatch(
        r"drained kinemill1\|operator\|H\|drain\|[0-9a-f]{8}\|anna until 2999-01-31: smoke", state("n1")
    )
    assert changed(adhoc("drain", "adhoc_nodes=n1", "adhoc_until=2999-01-31", *WHO)) == []
    on("n1", "systemctl", "start", "kinemill-node-check.service")
    assert "operator" in state("n1")
    on("ctl", "scontrol", "update", "nodename=n2", "state=drain", "reason=mine")
    adhoc("undrain", "adhoc_nodes=n1,n2", works=False)
    assert "operator" in state("n1")
    assert state("n2") == "drained mine"
    adhoc("undrain", "adhoc_nodes=n1")
    wait("n1 in service", lambda: state("n1") == "idle none")


def test_nodes_boot_in_waves_and_one_that_was_drained_stays_so() -> None:
    before = {node: on(node, "systemctl", "show", "--value", "--property=UserspaceTimestamp") for node in ("n1", "n2")}
    adhoc("reboot", "adhoc_nodes=all", "adhoc_batch=1", *WHO)
    for node, stamp in before.items():
        assert on(node, "systemctl", "show", "--value", "--property=UserspaceTimestamp") != stamp
    wait("n1 in service", lambda: state("n1") == "idle none")
    wait("n2 out of service still", lambda: state("n2") == "drained mine")
    on("ctl", "scontrol", "update", "nodename=n2", "state=resume")
    wait("n2 in service", lambda: state("n2") == "idle none")
    # a node whose checks find a fault stays out, in the runner's name, and ends the run
    # (a fault that a boot does not cure, and no timer that would drain the node before the playbook does)
    on("n1", "systemctl", "stop", "kinemill-node-check.timer")
    sandbox("gpu", "set", "n1", "gpu3.remap.failure=1")
    try:
        adhoc("reboot", "adhoc_nodes=n1,n2", "adhoc_batch=1", *WHO, works=False)
    finally:
        sandbox("gpu", "set", "n1", "gpu3.remap.failure=")
    assert "|operator|H|reboot|" in state("n1")
    assert "reboot" not in state("n2")
    clean_round("n1")
    adhoc("undrain", "adhoc_nodes=n1")
    wait("both in service", lambda: state("n1,n2") == "idle none")


def test_a_node_comes_and_goes_and_its_history_stays() -> None:
    job = submit("n1")
    adhoc("add_node", "adhoc_nodes=n3", grown=True, sources="previous")
    wait("n3 in service", lambda: state("n3") == "idle none")
    there = submit("n3")
    said = adhoc("remove_node", "adhoc_nodes=n3", *WHO, "adhoc_wait_minutes=0", grown=True, works=False)
    assert f"{there} of researcher" in said
    assert state("n3").startswith("draining kinemill1|operator|H|remove|")
    on("ctl", "scancel", there)
    adhoc("remove_node", "adhoc_nodes=n3", *WHO, grown=True)
    assert "n3" not in on("ctl", "sinfo", "--Node", "--noheader")
    assert (
        on("n3", "systemctl", "is-active", "slurmd", "kinemill-node-check.timer", check=False).split()
        == ["inactive"] * 2
    )
    assert "n3" in on("ctl", "sacct", "--noheader", "--allocations", "--format=NodeList", f"--jobs={there}")
    assert changed(adhoc("remove_node", "adhoc_nodes=n3", *WHO, grown=True)) == []
    assert running(job)
    on("ctl", "scancel", job)


def test_the_key_changes_under_a_running_job_and_a_node_that_was_down_is_refused() -> None:
    job = submit("n1")
    old = on("ctl", "sha256sum", "/etc/munge/munge.key")
    sandbox("cut", "n2")
    said = adhoc("rotate_munge_key", works=False)
    assert "n2 does not answer" in said
    assert on("ctl", "sha256sum", "/etc/munge/munge.key") == old
    said = adhoc("rotate_munge_key", "adhoc_allow_down=true", "adhoc_wait_minutes=5")
    assert "--limit n2" in re.sub(r"\s+", " ", said)
    new = on("ctl", "sha256sum", "/etc/munge/munge.key")
    assert new != old
    assert on("n1", "sha256sum", "/etc/munge/munge.key") == new
    assert running(job)
    sandbox("on", "n2")
    wait("n2 down", lambda: state("n2").startswith("down"))
    wait("a refusal", lambda: "Invalid credential" in on("ctl", "tail", "--lines=400", "/var/log/slurm/slurmctld.log"))
    assert state("n2").startswith("down"), state("n2")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")}
    command = ["ansible-playbook", "playbooks/slurm.yml", "--inventory=inventories/sandbox", "--tags=munge_configure"]
    subprocess.run([*command, "--limit=n2"], cwd=REPO, env=environment, check=True, capture_output=True, timeout=300)
    wait("n2 in service", lambda: state("n2") == "idle none")
    on("ctl", "scancel", job)


def test_the_databases_password_changes_where_there_is_one() -> None:
    assert "nothing to change" in adhoc("rotate_secrets")
    plant = "echo \"ALTER USER slurm@localhost IDENTIFIED BY 'hunter2hunter2';\" | mariadb"
    on("ctl", "bash", "-c", f"{plant} && echo StoragePass=hunter2hunter2 >>/etc/slurm/slurmdbd.conf")
    on("ctl", "systemctl", "restart", "slurmdbd")
    try:
        adhoc("rotate_secrets")
        assert "hunter2" not in on("ctl", "cat", "/etc/slurm/slurmdbd.conf")
        old = "MYSQL_PWD=hunter2hunter2 runuser -u slurm -- mariadb --user=slurm --execute='SELECT 1' 2>&1"
        assert "Access denied" in on("ctl", "bash", "-c", old, check=False)
        assert on("ctl", "sacctmgr", "--noheader", "--parsable2", "show", "cluster", "format=cluster") == "sandbox"
        new = re.search(r"StoragePass=(\S+)", on("ctl", "cat", "/etc/slurm/slurmdbd.conf"))
        assert new is not None
        journal = on("ctl", "journalctl", "--output=cat", "--no-pager")
        assert new[1] not in journal
    finally:
        back = "echo 'ALTER USER slurm@localhost IDENTIFIED VIA unix_socket;' | mariadb"
        on(
            "ctl",
            "bash",
            "-c",
            f"{back} && sed -i /^StoragePass/d /etc/slurm/slurmdbd.conf && systemctl restart slurmdbd",
        )


def test_a_support_bundle_holds_what_is_needed_and_no_secret() -> None:
    key = on("ctl", "cat", "/etc/munge/munge.key")
    planted = {"key": key, "password": "StoragePass=plantedpassword1", "token": "KINEMILL_TOKEN=plantedtoken12345"}
    for text in planted.values():
        on("ctl", "bash", "-c", 'printf "%s\\n" "$1" >>/var/log/slurm/slurmctld.log', "-", f"debug: {text}")
    adhoc("support_bundle")
    (bundle,) = (EPHEMERAL / "build" / "support").glob("sandbox-*.tar.gz")
    assert bundle.stat().st_mode & 0o777 == 0o600
    with tarfile.open(bundle) as tar:
        files = {member.name: tar.extractfile(member) for member in tar}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    parts = {name.split("/", 1)[1] for name in texts}
    assert {
        "ctl/sdiag.txt",
        "ctl/nodes.txt",
        "ctl/logs/slurmctld.log",
        "n1/agents-check.json",
        "n2/versions.txt",
    } <= parts
    assert json.loads(next(text for name, text in texts.items() if name.endswith("n1/agents-check.json")))["results"]
    everything = "\n".join(texts.values())
    assert "[removed]" in everything
    for secret in (key, key[:32], key[-32:], "plantedpassword1", "plantedtoken12345"):
        assert secret not in everything


def test_the_agents_go_and_slurm_and_its_jobs_stay() -> None:
    adhoc("uninstall", works=False)
    wait("n1 in service", lambda: state("n1") == "idle none")
    job = submit("n1")
    on("ctl", "scontrol", "update", "nodename=n2", "state=drain", "reason=mine")
    adhoc("uninstall", "adhoc_confirm=sandbox")
    for node in ("ctl", "n1", "n2"):
        assert (
            on(
                node,
                "bash",
                "-c",
                "ls -d /opt/kinemill /etc/kinemill/agents.toml /run/kinemill 2>/dev/null",
                check=False,
            )
            == ""
        )
        assert on(node, "systemctl", "list-unit-files", "--no-legend", "kinemill-node*", check=False) == ""
    assert "/opt/kinemill" not in on("ctl", "scontrol", "show", "config")
    assert running(job)
    assert state("n2") == "drained mine"
    assert on("ctl", "test", "-f", "/var/lib/kinemill/munge.key") == ""
    assert changed(adhoc("uninstall", "adhoc_confirm=sandbox")) == []
    on("ctl", "scancel", job)
    # (asked of the queue: for minutes after settings changed under a job, sinfo of 22.05 may show a free node as mixed)
    wait("n1 free", lambda: on("ctl", "squeue", "--noheader", "--nodelist=n1") == "")
    on("ctl", "scancel", submit("n1"))
