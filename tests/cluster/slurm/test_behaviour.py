"""What Slurm does when nodes, jobs and prologs fail: the facts that agents and policies stand on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import pytest

from kinemill.control.sandbox import faults
from kinemill.control.sandbox.cluster import _fields as fields_of
from kinemill.errors import DeadlineError, ExternalError
from support.cluster import SUITES, wait_for

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

BOTH = [pytest.param("bookworm", id="22.05"), pytest.param("trixie", id="24.11")]
# The slow ones run on the second suite in `make full-cluster` only.
BOTH_SLOW = [BOTH[0], pytest.param("trixie", id="24.11", marks=pytest.mark.full("cluster"))]

Get = Callable[..., "Cluster"]


def state_of(cluster: Cluster, job: int) -> str:
    return cluster.job(job)["JobState"]


def ended(cluster: Cluster, job: int) -> dict[str, str]:
    """The job once it has ended."""
    under_way = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "REQUEUED"}

    def done() -> dict[str, str] | None:
        found = cluster.job(job)
        return found if found["JobState"] not in under_way else None

    return wait_for(f"end of job {job}", done)


def attempts(cluster: Cluster, job: int) -> list[list[str]]:
    """State and nodes of each attempt that accounting knows."""
    lines = cluster.slurm(
        "sacct", "--duplicates", "--noheader", "--parsable2", "--allocations", f"--jobs={job}",
        "--starttime=now-1hour", "--format=State,NodeList",
    )  # fmt: skip
    return [line.split("|") for line in lines.splitlines()]


def output(cluster: Cluster, name: str) -> str:
    """A file of the folder that all nodes share."""
    return (cluster.box.places.shared / name).read_text()


@pytest.mark.parametrize("suite", BOTH)
def test_gpus_of_a_job_are_named_on_every_node(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    assert cluster.version() == SUITES[suite]
    done = cluster.slurm("srun", "--nodes=2", "--gres=gpu:2", "sh", "-c", "hostname; echo $CUDA_VISIBLE_DEVICES")
    assert sorted(done.split()) == ["0,1", "0,1", "n1", "n2"]


@pytest.mark.parametrize("suite", BOTH)
def test_a_failing_prolog_drains_and_the_job_runs_elsewhere(slurm_cluster: Get, suite: str) -> None:
    # given a node whose prolog fails
    cluster = slurm_cluster(suite)
    cluster.hook("n1", "prolog", "fail", "echo something is wrong >&2; exit 3")
    # when a job starts there
    job = cluster.submit("echo ${SLURM_RESTART_COUNT:-unset} >/shared/restarts", "--gres=gpu:1")
    # then Slurm drains it with its own text, and the job ends on the other node at its second attempt
    wait_for("drain", lambda: "DRAIN" in cluster.node("n1")["State"])
    assert cluster.node("n1")["Reason"].startswith("Prolog error [")
    found = ended(cluster, job)
    assert (found["JobState"], found["BatchHost"], found["Restarts"]) == ("COMPLETED", "n2", "1")
    assert output(cluster, "restarts").strip() == "1"
    # and the script's words are in slurmd's log
    log = (cluster.box.root("n1") / "var/log/slurm/slurmd.log").read_text(errors="replace")
    assert "prolog failed" in log
    assert "something is wrong" in log


@pytest.mark.parametrize("suite", BOTH_SLOW)
def test_a_reason_written_by_the_prolog_stays(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    cluster.hook(
        "n1",
        "prolog",
        "drain",
        'PATH=/usr/bin scontrol update nodename="$SLURMD_NODENAME" state=drain reason="preflight:ecc"; exit 1',
    )
    job = cluster.submit("true", "--gres=gpu:1")
    found = ended(cluster, job)
    assert found["JobState"] == "COMPLETED"
    assert cluster.node("n1")["Reason"].startswith("preflight:ecc [")


@pytest.mark.parametrize("suite", BOTH)
def test_the_first_attempt_has_no_restart_count(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    job = cluster.submit("echo ${SLURM_RESTART_COUNT:-unset} >/shared/first")
    assert ended(cluster, job)["JobState"] == "COMPLETED"
    assert output(cluster, "first").strip() == "unset"


@pytest.mark.parametrize("suite", BOTH)
def test_what_a_prolog_is_told(slurm_cluster: Get, suite: str) -> None:
    # given a prolog that writes its environment down
    cluster = slurm_cluster(suite)
    for node in cluster.computes:
        cluster.hook(node, "prolog", "env", "/usr/bin/env >/shared/prolog.env; /usr/bin/pwd >/shared/prolog.cwd")
    # when an ordinary user's job starts
    job = cluster.submit("true", "--gres=gpu:2", user="researcher")
    assert ended(cluster, job)["JobState"] == "COMPLETED"
    found = dict(line.split("=", 1) for line in output(cluster, "prolog.env").splitlines() if "=" in line)
    # then it knows the job and its GPUs, and has neither HOME nor a PATH of its own
    assert found["SLURM_JOB_ID"] == str(job)
    assert found["SLURM_JOB_GPUS"] == found["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert found["SLURM_JOB_UID"] == "2000"
    assert found["SLURM_SCRIPT_CONTEXT"] == "prolog_slurmd"
    assert found["SLURMD_NODENAME"] in cluster.computes
    assert found["SLURM_JOB_RESTART_COUNT"] == "0"
    assert "HOME" not in found
    # 22.05 names the nodes by the older name only
    assert ("SLURM_JOB_NODELIST" in found) == (suite != "bookworm")
    assert ("SLURM_JOB_START_TIME" in found) == (suite != "bookworm")


@pytest.mark.parametrize("suite", BOTH)
def test_what_a_health_check_is_told(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    cluster.hook(
        "n1", "health", "env", "/usr/bin/env >/shared/health.new; /usr/bin/mv /shared/health.new /shared/health.env"
    )
    path = cluster.box.places.shared / "health.env"
    path.unlink(missing_ok=True)
    wait_for("health check", path.is_file)
    names = {line.split("=", 1)[0] for line in output(cluster, "health.env").splitlines()}
    assert "SLURMD_NODENAME" in names
    assert "HOME" not in names
    assert not {name for name in names if name.startswith("SLURM_JOB")}


@pytest.mark.parametrize("suite", BOTH)
def test_resume_is_refused_for_a_node_that_is_not_down(slurm_cluster: Get, suite: str) -> None:
    # given one drained and one idle node
    cluster = slurm_cluster(suite)
    cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=test")
    wait_for("drain", lambda: cluster.states()["n1"] == "drained")
    # then resuming both in one call fails as a whole, and one by one the drained one comes back
    with pytest.raises(ExternalError, match="Invalid node state"):
        cluster.slurm("scontrol", "update", "nodename=n2", "state=resume")
    with pytest.raises(ExternalError, match="Invalid node state"):
        cluster.slurm("scontrol", "update", "nodename=n1,n2", "state=resume")
    cluster.slurm("scontrol", "update", "nodename=n1", "state=resume", check=False)
    cluster.wait_idle()
    assert "Reason" not in cluster.node("n1")


@pytest.mark.parametrize("suite", BOTH)
def test_a_drain_replaces_another_reason_in_silence(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=do not touch")
    cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=ours")
    assert cluster.node("n1")["Reason"].startswith("ours [")


@pytest.mark.parametrize("suite", BOTH)
def test_reboot_through_slurm_comes_back_by_itself(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    before = cluster.box.nspawn_pid("n2")
    cluster.slurm("scontrol", "reboot", "ASAP", "nextstate=resume", "reason=test", "n2")
    wait_for("reboot", lambda: cluster.box.nspawn_pid("n2") not in (None, before))
    wait_for("its own return", lambda: "Reason" not in cluster.node("n2"))
    cluster.wait_idle()


def reservation(cluster: Cluster, name: str, *options: str) -> None:
    cluster.slurm("scontrol", "create", "reservation", f"reservationname={name}", "users=root", *options)


@pytest.mark.parametrize("suite", BOTH_SLOW)
def test_reservations_outlive_a_killed_controller(slurm_cluster: Get, suite: str) -> None:
    # given a maintenance reservation and one in the future
    cluster = slurm_cluster(suite)
    reservation(cluster, "now", "starttime=now", "duration=60", "nodes=n1", "flags=maint,ignore_jobs")
    reservation(cluster, "later", "starttime=now+1hour", "duration=60", "nodes=n2")
    # and they are on disk: slurmctld saves seconds later, and what it has not saved is lost with it
    saved = cluster.box.root("ctl") / "var/lib/slurm/slurmctld/resv_state"
    wait_for("save", lambda: saved.is_file() and all(name in saved.read_bytes() for name in (b"now", b"later")))
    # when slurmctld is killed and comes back
    cluster.box.exec("ctl", ["systemctl", "kill", "--signal=KILL", "slurmctld"])
    wait_for("slurmctld", lambda: "UP" in cluster.slurm("scontrol", "ping", check=False))
    # then both are there, nobody owns them any more, and the node is still held
    wait_for("reservations", lambda: _reservations(cluster) == {"now", "later"})
    wait_for("maint", lambda: cluster.states()["n1"].startswith("maint"))
    cluster.slurm("scontrol", "delete", "reservationname=now")
    assert _reservations(cluster) == {"later"}


def _reservations(cluster: Cluster) -> set[str]:
    text = cluster.slurm("scontrol", "--oneliner", "show", "reservation", check=False)
    return {line.split()[0].partition("=")[2] for line in text.splitlines() if line.startswith("ReservationName=")}


@pytest.mark.parametrize("suite", BOTH)
def test_a_controller_that_just_started_knows_nothing_of_its_nodes(slurm_cluster: Get, suite: str) -> None:
    # given nodes that cannot answer
    cluster = slurm_cluster(suite)
    faults.partition(cluster.box, cluster.computes)
    # when the controller starts anew, with no state of its own
    aside = "cd /var/lib/slurm; systemctl stop slurmctld; cp -a slurmctld kept; find slurmctld -mindepth 1 -delete"
    back = "cd /var/lib/slurm; systemctl stop slurmctld; find slurmctld -mindepth 1 -delete; cp -a kept/. slurmctld/"
    cluster.box.exec("ctl", ["sh", "-euc", aside])
    try:
        cluster.box.exec("ctl", ["systemctl", "start", "slurmctld"])
        # then it says so, until it takes them for lost, 15 s later
        asked = "until scontrol ping | grep -q UP; do sleep 0.1; done; exec scontrol --oneliner show node n1"
        found = fields_of(cluster.box.exec("ctl", ["sh", "-c", asked], deadline_s=240).stdout)
        assert found["State"].startswith("UNKNOWN")
        assert found["BootTime"] == "None"
        assert "Version" not in found
    finally:
        # with its own state again it goes on counting jobs where it was
        cluster.box.exec("ctl", ["sh", "-euc", f"{back}; rm -r kept; systemctl start slurmctld"])
        faults.partition(cluster.box, cluster.computes, heal=True)
    cluster.wait_idle()


@pytest.mark.parametrize("suite", BOTH_SLOW)
def test_a_power_cut_requeues_the_job_elsewhere(slurm_cluster: Get, suite: str) -> None:
    # given a job on a node, whose first attempt has no end of its own
    cluster = slurm_cluster(suite)
    script = 'test "$SLURM_RESTART_COUNT" || sleep 3000; echo $SLURM_RESTART_COUNT >/shared/cut'
    job = cluster.submit(script, "--gres=gpu:1", "--requeue")
    wait_for("running", lambda: state_of(cluster, job) == "RUNNING")
    host = cluster.job(job)["BatchHost"]
    # when the node loses power
    faults.cut(cluster.box, host)
    # then it is marked, and the job runs on the other node as its second attempt
    wait_for("unanswered", lambda: cluster.states()[host].endswith("*"))
    found = ended(cluster, job)
    assert (found["JobState"], found["Restarts"]) == ("COMPLETED", "1")
    assert found["BatchHost"] != host
    assert output(cluster, "cut").strip() == "1"
    # and accounting has one row for each attempt
    rows = wait_for("accounting", lambda: _two(attempts(cluster, job)))
    assert rows[0][0] in {"NODE_FAIL", "REQUEUED"}
    assert rows[1][0] == "COMPLETED"
    # and with ReturnToService=2 the node comes back by itself
    cluster.box.on(host)
    cluster.wait_idle()


def _two(rows: list[list[str]]) -> list[list[str]] | None:
    return rows if len(rows) == 2 and rows[1][0] == "COMPLETED" else None


@pytest.fixture
def changed(slurm_cluster: Get) -> Iterator[Callable[[Cluster, str, str], None]]:
    """Change a setting of a cluster for one test; it is put back afterwards."""
    before: list[tuple[Cluster, str]] = []

    def change(cluster: Cluster, old: str, new: str) -> None:
        text = (cluster.box.root("ctl") / "etc/slurm/slurm.conf").read_text()
        assert old in text
        before.append((cluster, text))
        _configure(cluster, text.replace(old, new))

    yield change
    for cluster, text in reversed(before):
        _configure(cluster, text)
        cluster.box.exec("ctl", ["systemctl", "restart", "slurmctld"])


def _configure(cluster: Cluster, text: str) -> None:
    for node in cluster.box.nodes:
        (cluster.box.root(node) / "etc/slurm/slurm.conf").write_text(text)
    cluster.slurm("scontrol", "reconfigure")


@pytest.mark.parametrize("suite", BOTH_SLOW)
def test_without_nohold_the_job_of_a_failed_prolog_is_held(
    slurm_cluster: Get, suite: str, changed: Callable[[Cluster, str, str], None]
) -> None:
    cluster = slurm_cluster(suite)
    changed(cluster, ",nohold_on_prolog_fail", "")
    cluster.hook("n1", "prolog", "fail", "exit 3")
    job = cluster.submit("true", "--gres=gpu:1")
    found = wait_for("held", lambda: _held(cluster, job))
    assert found["Reason"].lower().replace("_", " ").startswith("launch failed requeued held")
    cluster.slurm("scontrol", "release", str(job))
    assert ended(cluster, job)["BatchHost"] == "n2"


def _held(cluster: Cluster, job: int) -> dict[str, str] | None:
    found = cluster.job(job)
    return found if "held" in found["Reason"].lower() and found["JobState"] != "COMPLETING" else None


@pytest.mark.full("cluster")
@pytest.mark.parametrize("suite", BOTH)
def test_with_return_to_service_1_a_node_that_rebooted_by_itself_stays_down(
    slurm_cluster: Get, suite: str, changed: Callable[[Cluster, str, str], None]
) -> None:
    cluster = slurm_cluster(suite)
    changed(cluster, "ReturnToService=2", "ReturnToService=1")
    # and a boot that is over before Slurm takes the node for lost
    changed(cluster, "SlurmdTimeout=15", "SlurmdTimeout=600")
    cluster.wait_idle()

    def stays_down() -> bool:
        # (a controller that read its settings and has not heard of the node since sees no reboot, hence the tries)
        faults.cut(cluster.box, "n1")
        cluster.box.on("n1")
        try:
            return wait_for("down", lambda: "DOWN" in cluster.node("n1")["State"], deadline_s=40)
        except DeadlineError:
            return False

    wait_for("down after a boot", stays_down, deadline_s=400)
    assert cluster.node("n1")["Reason"].startswith("Node unexpectedly rebooted")


@pytest.mark.full("cluster")
@pytest.mark.parametrize("suite", BOTH)
def test_a_requeued_job_waits_as_long_as_its_credential_lives(
    slurm_cluster: Get, suite: str, changed: Callable[[Cluster, str, str], None]
) -> None:
    # given Slurm's own cred_expire, 120 s, instead of the test bed's 5 s
    cluster = slurm_cluster(suite)
    changed(cluster, "AuthInfo=cred_expire=5", "AuthInfo=cred_expire=120")
    cluster.box.exec("ctl", ["systemctl", "restart", "slurmctld"])
    cluster.wait_idle()
    cluster.hook("n1", "prolog", "fail", "exit 3")
    # when a prolog fails
    job = cluster.submit("true", "--gres=gpu:1")
    found = wait_for("requeue", lambda: _waiting(cluster, job))
    # then the job may start again only when the old credential is dead
    begin, submitted = (datetime.fromisoformat(found[key]) for key in ("EligibleTime", "SubmitTime"))
    assert 100 <= (begin - submitted).total_seconds() <= 180
    cluster.slurm("scancel", str(job))


def _waiting(cluster: Cluster, job: int) -> dict[str, str] | None:
    found = cluster.job(job)
    return found if found["JobState"] == "PENDING" and found["Reason"] == "BeginTime" else None


@pytest.mark.parametrize("suite", BOTH)
def test_json_is_there_from_24_11_on(slurm_cluster: Get, suite: str) -> None:
    cluster = slurm_cluster(suite)
    if suite == "bookworm":
        with pytest.raises(ExternalError, match="unrecognized option"):
            cluster.slurm("scontrol", "--json", "show", "node")
        states = json.loads(cluster.slurm("sinfo", "--json"))["nodes"][0]
        assert isinstance(states["state"], str)
        return
    node = json.loads(cluster.slurm("scontrol", "--json", "show", "node", "n1"))["nodes"][0]
    assert node["state"] == ["IDLE"]
    reservation(cluster, "json", "starttime=now+1hour", "duration=60", "nodes=n2", "comment=lease")
    found = json.loads(cluster.slurm("scontrol", "--json", "show", "reservation"))["reservations"][0]
    assert not {"comment", "state"} & set(found)
    assert "Comment=lease" in cluster.slurm("scontrol", "--oneliner", "show", "reservation")


def test_a_reservation_of_22_05_takes_no_comment(slurm_cluster: Get) -> None:
    cluster = slurm_cluster("bookworm")
    with pytest.raises(ExternalError):
        reservation(cluster, "commented", "starttime=now+1hour", "duration=60", "nodes=n2", "comment=lease")


def test_22_05_has_no_timed_resume(slurm_cluster: Get) -> None:
    cluster = slurm_cluster("bookworm")
    with pytest.raises(ExternalError):
        cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", "reason=x", "resumeafter=60")


def test_accounting_of_22_05_has_no_restarts(slurm_cluster: Get) -> None:
    cluster = slurm_cluster("bookworm")
    with pytest.raises(ExternalError, match="Invalid field requested"):
        cluster.slurm("sacct", "--format=JobID,Restarts")
