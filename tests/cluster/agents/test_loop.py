"""The whole loop on real Slurm of both suites: a fault, a refused job, a node drained with our reason."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kinemill.contracts.fleet import parse_reason
from kinemill.control.sandbox import standins
from kinemill.slurm.cli import CliSlurm
from support.agents_live import AGENTS, Agents
from support.cluster import wait_for
from support.slurm_live import run_on

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

Get = Callable[..., "Cluster"]
BOTH = [pytest.param("bookworm", id="22.05-py3.11"), pytest.param("trixie", id="24.11-py3.13")]
XID = "NVRM: Xid (PCI:0000:1b:00): {}, pid=77, name=python, Ch 00000008"


@pytest.fixture(params=BOTH)
def agents(request: pytest.FixtureRequest, slurm_cluster: Get, agents_site: Path) -> Agents:
    """Agents on every node of a clean cluster, healthy and without memory."""
    found = Agents(slurm_cluster(request.param), agents_site)
    for node in found.cluster.computes:
        found.install(node)
        found.forget(node)
    return found


def slurm(agents: Agents) -> CliSlurm:
    return CliSlurm(run_on(agents.cluster), timeout_s=60)


def ended(agents: Agents, job: int) -> dict[str, str]:
    def done() -> dict[str, str] | None:
        found = agents.cluster.job(job)
        return (
            found if found["JobState"] not in {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"} else None
        )

    return wait_for(f"end of job {job}", done)


def reason_event(agents: Agents, node: str):  # type: ignore[no-untyped-def]  # DrainEvent | None
    return parse_reason(slurm(agents).nodes([node])[0].reason)


def test_a_healthy_node_passes_everything_and_explains_itself(agents: Agents) -> None:
    done = agents.node("n1", "check", "--json")
    results = {r["check"]: r for r in json.loads(done.stdout)["results"]}
    results.pop("host.clock")  # nothing keeps the time in a sandbox
    assert {r["status"] for r in results.values()} <= {"OK", "SKIP"}, done.stdout
    for check in ("gpu.nvml", "gpu.count", "gpu.ecc", "net.infiniband", "disk.nvme", "disk.local", "container.run"):
        assert results[check]["status"] == "OK", check
    assert "percentage_used 3" in results["disk.nvme"]["evidence"]["nvme0"]
    text = agents.node("n1", "explain", "gpu.ecc").stdout
    assert "now: OK" in text
    facts = json.loads(agents.node("n1", "facts", "--json").stdout)
    assert facts["python"].startswith("3.11" if "bookworm" in agents.cluster.image else "3.13")


def test_a_fault_refuses_the_job_which_runs_elsewhere_and_the_node_is_drained_with_our_reason(agents: Agents) -> None:
    # given an uncorrected ECC error on n1's GPU 0
    agents.gpu("n1", gpu0__ecc__volatile__uncorrected="2")
    # when a job starts there
    job = agents.cluster.submit("true", "--gres=gpu:1")
    # then it is refused, runs on n2, and Slurm has drained n1 with its own text
    found = ended(agents, job)
    assert (found["JobState"], found["BatchHost"], found["Restarts"]) == ("COMPLETED", "n2", "1")
    assert slurm(agents).nodes(["n1"])[0].reason == "Prolog error"
    # and when the reporter comes, the reason is ours and the report is in Extra
    agents.node("n1", "report")
    shown = slurm(agents).nodes(["n1"])[0]
    event = parse_reason(shown.reason)
    assert event is not None
    assert (event.check, event.letter, event.code) == ("gpu.ecc", "T", "ecc_vol_unc")
    assert "gpu0: 2 uncorrected" in event.text
    assert json.loads(shown.extra)["event"] == event.event
    # and again: nothing changes
    agents.node("n1", "report")
    assert slurm(agents).nodes(["n1"])[0].reason_time_s == shown.reason_time_s
    # and cured by a reboot's new counters, full rounds pass and are counted for the controller
    agents.gpu("n1", gpu0__ecc__volatile__uncorrected="")

    def round_passes() -> bool:
        agents.cluster.box.exec("n1", ["systemctl", "start", "kinemill-node-check.service"])
        report = json.loads(slurm(agents).nodes(["n1"])[0].extra)
        assert report["event"] == event.event
        return bool(report["passes"] >= 1)

    wait_for("a full round", round_passes)


def test_an_idle_fault_is_found_by_the_timer_and_drains_the_node(agents: Agents) -> None:
    box = agents.cluster.box
    agents.gpu("n1", gpu3__remap__failure="1")
    box.exec("n1", ["systemctl", "start", "kinemill-node-check.timer"])
    event = wait_for("drain by the timer", lambda: reason_event(agents, "n1"))
    assert (event.check, event.letter, event.code) == ("gpu.remap", "H", "remap_failure")
    assert slurm(agents).nodes(["n2"])[0].states == {"IDLE"}
    # (a round that is under way would drain the node again after this test)
    box.exec("n1", ["systemctl", "stop", "kinemill-node-check.timer", "kinemill-node-check.service"])
    metrics = agents.read("n1", "/var/lib/kinemill/metrics/kinemill_node.prom")
    assert 'kinemill_check_result{check="gpu.remap",class="hard"} 2' in metrics


def test_a_humans_drain_is_untouched(agents: Agents) -> None:
    agents.cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=do not touch | Kim")
    before = slurm(agents).nodes(["n1"])[0]
    agents.gpu("n1", gpu3__lost="1")
    agents.cluster.box.exec("n1", ["systemctl", "start", "kinemill-node-check.service"])
    after = slurm(agents).nodes(["n1"])[0]
    assert (after.reason, after.reason_time_s) == ("do not touch | Kim", before.reason_time_s)
    assert json.loads(after.extra or after.comment)["event"] != ""  # the fault is told all the same


def test_a_missing_agent_lets_jobs_through_and_is_counted(agents: Agents) -> None:
    box = agents.cluster.box
    box.exec("n1", ["mv", f"{AGENTS}/bin/python", f"{AGENTS}/bin/gone"])
    try:
        job = agents.cluster.submit("hostname >/shared/where", "--gres=gpu:1", "--nodelist=n1")
        assert ended(agents, job)["JobState"] == "COMPLETED"
        wait_for("no job on n1", lambda: slurm(agents).nodes(["n1"])[0].states == {"IDLE"})
        missing = box.exec("n1", ["cat", "/run/kinemill/agent_missing"]).stdout
        assert {line.split()[1] for line in missing.splitlines()} >= {"prolog", "epilog"}
    finally:
        box.exec("n1", ["mv", f"{AGENTS}/bin/gone", f"{AGENTS}/bin/python"])
    box.exec("n1", ["systemctl", "start", "kinemill-node-check.service"])
    assert 'kinemill_agent_missing_total{hook="prolog"}' in agents.read(
        "n1", "/var/lib/kinemill/metrics/kinemill_node.prom"
    )


def test_a_job_on_healthy_gpus_of_a_shared_node_is_let_through(agents: Agents) -> None:
    agents.gpu("n1", gpu7__ecc__volatile__uncorrected="1")
    job = agents.cluster.submit("true", "--gres=gpu:1", "--nodelist=n1")
    assert ended(agents, job)["JobState"] == "COMPLETED"


def admin_comment(agents: Agents, job: int) -> str:
    """An ended job's note, from accounting, which keeps it in lower case."""
    words = ("sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job}", "--format=AdminComment")
    return agents.cluster.slurm(*words).strip().lower()


def test_an_application_xid_is_a_note_for_its_job_and_the_node_stays(agents: Agents) -> None:
    # given a job during which GPU 0 throws an XID that programs cause
    shared = agents.cluster.box.places.shared
    script = "touch /shared/began; while [ ! -e /shared/go ]; do sleep 0.1; done; rm /shared/began /shared/go"
    job = agents.cluster.submit(script, "--gres=gpu:1", "--nodelist=n1")
    wait_for("the job itself, not its prolog", (shared / "began").exists)
    address = standins.pci_address(0).lower()[4:-2]
    standins.kernel_message(agents.cluster.box.stand_ins("n1"), XID.replace("0000:1b:00", address).format(31))
    (shared / "go").touch()
    assert ended(agents, job)["JobState"] == "COMPLETED"
    # when the reporter comes
    wait_for("no job on n1", lambda: slurm(agents).nodes(["n1"])[0].states == {"IDLE"})

    def noted() -> bool:
        agents.node("n1", "report")
        return "xid 31 (memory page fault)" in admin_comment(agents, job)

    # then the job carries the note once accounting knows its end, and the node is in service
    wait_for("note", noted)
    # and a later, clean job gets none
    later = agents.cluster.submit("true", "--gres=gpu:1", "--nodelist=n1")
    assert ended(agents, later)["JobState"] == "COMPLETED"
    wait_for("no job on n1", lambda: slurm(agents).nodes(["n1"])[0].states == {"IDLE"})
    agents.node("n1", "report")
    assert admin_comment(agents, later) == ""


def test_a_job_asks_and_root_checks_for_itself(agents: Agents) -> None:
    # given a healthy node and a user's job that complains
    box = agents.cluster.box
    box.exec("n1", ["systemctl", "start", "kinemill-node-ask.socket"])
    words = ["runuser", "-u", "researcher", "--", f"{AGENTS}/bin/kinemill-node", "ask"]
    box.exec("n1", words)
    verdict = "/run/kinemill/verdict.json"
    wait_for("check", lambda: box.exec("n1", ["test", "-e", verdict], check=False).returncode == 0)
    # then nothing happens to a healthy node, and the log names the asker
    assert slurm(agents).nodes(["n1"])[0].states == {"IDLE"}
    wait_for("the log", lambda: "researcher (2000) asked 1x" in box.journal("n1"))
    # and a node that is really sick is drained, however often it is asked
    agents.gpu("n1", gpu2__lost="1")
    for _ in range(8):
        box.exec("n1", words)
    event = wait_for("drain", lambda: reason_event(agents, "n1"))
    assert (event.check, event.code) == ("gpu.count", "gpu_lost")
    active = box.exec("n1", ["systemctl", "is-active", "kinemill-node-ask.socket"], check=False)
    assert active.stdout.strip() == "active"
