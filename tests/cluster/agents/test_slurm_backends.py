"""The backends against real Slurm of both suites: one contract, and texts that try to forge lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kinemill.contracts import JobRequest, SlurmAdmin, SlurmJobs
from kinemill.errors import UnavailableError
from kinemill.slurm.cli import CliSlurm
from kinemill.slurm.run import Run
from support.cluster import wait_for
from support.slurm_contract import SlurmContract
from support.slurm_live import RECORDINGS, Recorder, run_on

if TYPE_CHECKING:
    from kinemill.control.sandbox.cluster import Cluster

Get = Callable[..., "Cluster"]
FORGED = "evil | x State=IDLE Extra=y\nNodeName=n2 Arch=x State=DOWN Reason=forged [root@2020-01-01T00:00:00]"
BACKENDS = [
    pytest.param(("bookworm", False), id="22.05-text"),
    pytest.param(("trixie", True), id="24.11-json"),
    pytest.param(("trixie", False), id="24.11-text", marks=pytest.mark.full("agents")),
    pytest.param(("sid", True), id="26.05-json", marks=pytest.mark.full("agents")),
    pytest.param(("sid", False), id="26.05-text", marks=pytest.mark.full("agents")),
]


@pytest.fixture(params=BACKENDS)
def cluster(request: pytest.FixtureRequest, slurm_cluster: Get) -> Cluster:
    """A clean cluster of the backend's suite."""
    return slurm_cluster(request.param[0])


@pytest.fixture
def slurm(cluster: Cluster, request: pytest.FixtureRequest) -> Iterator[CliSlurm]:
    """The backend in the form that the parameter names; with KINEMILL_RECORD=1 its answers are kept for replay."""
    _, as_json = request.node.callspec.params["cluster"]
    form = request.node.callspec.id
    run: Run = run_on(cluster)
    if not os.environ.get("KINEMILL_RECORD"):
        yield CliSlurm(run, timeout_s=60, json=as_json)
        return
    recorder = Recorder(run, RECORDINGS / form / f"{request.node.originalname}.json")
    yield CliSlurm(recorder, timeout_s=60, json=as_json)
    recorder.save()


class TestLive(SlurmContract):
    """The contract that the fake keeps too."""

    @pytest.fixture
    def admin(self, slurm: CliSlurm) -> SlurmAdmin:
        """The administrator's side."""
        return slurm

    @pytest.fixture
    def jobs(self, slurm: CliSlurm) -> SlurmJobs:
        """The submitter's side."""
        return slurm

    @pytest.fixture
    def tmp_path(self, cluster: Cluster, tmp_path: Path) -> Iterator[Path]:
        """A folder that the controller sees too."""
        folder = cluster.box.places.shared / tmp_path.name
        folder.mkdir(exist_ok=True)
        yield folder
        for path in folder.iterdir():
            path.unlink()


def test_probing_finds_the_form_of_the_release(slurm_cluster: Get) -> None:
    for suite, has_json in (("bookworm", False), ("trixie", True)):
        backend = CliSlurm(run_on(slurm_cluster(suite)), timeout_s=60)
        assert len(backend.nodes()) == 2
        assert backend._json is has_json


def test_a_reason_of_three_thousand_characters_and_one_that_forges_lines(cluster: Cluster, slurm: CliSlurm) -> None:
    long = "pipe|" * 600
    slurm.drain("n1", long)
    assert slurm.nodes(["n1"])[0].reason == long
    # a human's tool need not be as careful as ours: the newline gets in
    cluster.slurm("scontrol", "update", "nodename=n1", "state=drain", f"reason={FORGED}")
    slurm.set_extra("n1", '{"passes":1}')
    found = {n.name: n for n in slurm.nodes()}
    assert set(found) == {"n1", "n2"}
    assert found["n1"].reason == FORGED
    assert found["n1"].reason_uid == 0
    assert "DRAIN" in found["n1"].states
    assert (found["n2"].reason, "DOWN" in found["n2"].states) == ("", False)


def test_a_job_whose_name_and_comment_lie(cluster: Cluster, slurm: CliSlurm) -> None:
    script = cluster.box.places.shared / "lie.sh"
    script.write_text('#!/bin/sh\n[ "$WORD" = "with spaces" ] || exit 7\nsleep 300\n')
    job = slurm.submit(
        JobRequest(
            script,
            "a JobState=COMPLETED\nJobId=9 |",
            comment="key | State=FAILED",
            gres="gpu:2",
            output=Path("/dev/null"),
            time_limit_s=600,
            environment={"WORD": "with spaces"},
        )
    )
    running = wait_for("running", lambda: found if (found := slurm.state(job)).state == "RUNNING" else None)
    assert running.name == "a JobState=COMPLETED\nJobId=9 |"
    assert running.comment == "key | State=FAILED"
    assert (len(running.nodes), running.restarts, running.exit_code, running.user) == (1, 0, None, "root")
    node = slurm.nodes(running.nodes)[0]
    assert "gres/gpu=2" in node.alloc_tres
    assert "gpu:h200:2" in node.gres_used
    assert [j.job_id for j in slurm.jobs() if j.state == "RUNNING"] == [job]
    slurm.note(job, "XID 31 on 0000:3b:00")
    assert "XID 31 on 0000:3b:00" in cluster.job(job)["AdminComment"]
    slurm.requeue(job)
    again = wait_for("requeued", lambda: found if (found := slurm.state(job)).restarts == 1 else None)
    assert again.state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED")
    slurm.cancel(job)
    script.unlink()


def test_reservations_are_listed_and_deleted(cluster: Cluster, slurm: CliSlurm) -> None:
    cluster.slurm(
        "scontrol", "create", "reservation=kinemill1_test", "starttime=now", "duration=10", "users=root",
        "nodes=n1,n2", "flags=maint,ignore_jobs",
    )  # fmt: skip
    (found,) = slurm.reservations()
    assert (found.name, found.nodes, found.users) == ("kinemill1_test", ("n1", "n2"), ("root",))
    assert found.end_s - found.start_s == 600
    assert {"MAINT", "IGNORE_JOBS"} <= found.flags
    slurm.delete_reservation("kinemill1_test")
    assert slurm.reservations() == []


@pytest.mark.parametrize("suite", [pytest.param("bookworm", marks=pytest.mark.full("agents")), "trixie"])
def test_a_controller_that_is_down_is_unavailable_not_empty(slurm_cluster: Get, suite: str) -> None:
    # given a stopped controller; 24.11 then prints an empty list of jobs as JSON, with status 0
    cluster = slurm_cluster(suite)
    slurm = CliSlurm(run_on(cluster), timeout_s=60, json=suite == "trixie")
    cluster.box.exec("ctl", ["systemctl", "stop", "slurmctld"])
    try:
        with pytest.raises(UnavailableError):
            slurm.jobs()
    finally:
        cluster.box.exec("ctl", ["systemctl", "start", "slurmctld"])
        cluster.wait_idle()
