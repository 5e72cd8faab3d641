"""The Slurm contract over the fake, and over what real releases answered; recorded by tests/cluster/agents.

New recordings: `KINEMILL_RECORD=1 pytest tests/cluster/agents/test_slurm_backends.py`.
"""

from __future__ import annotations

import json

import pytest

from kinemill.clock import FakeClock
from kinemill.contracts import SlurmAdmin, SlurmJobs
from kinemill.slurm import jsonform, text
from kinemill.slurm.cli import CliSlurm
from kinemill.slurm.fake import FakeSlurm
from support.slurm_contract import SlurmContract
from support.slurm_live import RECORDINGS, replay
from support.slurm_raw import load

FORMS = ["22.05-text", "24.11-json", "24.11-text", "26.05-json", "26.05-text"]


class TestFake(SlurmContract):
    """The fake that policy tests use."""

    @pytest.fixture
    def admin(self) -> FakeSlurm:
        """Both sides are one object."""
        return FakeSlurm(FakeClock())

    @pytest.fixture
    def jobs(self, admin: FakeSlurm) -> FakeSlurm:
        """The submitter's side."""
        return admin


@pytest.mark.parametrize("form", FORMS)
class TestRecorded(SlurmContract):
    """Answers of real releases, word for word."""

    @pytest.fixture
    def backend(self, form: str, request: pytest.FixtureRequest) -> CliSlurm:
        """A backend that hears the recording of this test."""
        path = RECORDINGS / form / f"{request.node.originalname}.json"
        if not path.exists():  # the one test that asks Slurm nothing
            assert request.node.originalname == "test_it_is_both"
            return CliSlurm(json=False)
        return CliSlurm(replay(path), json=form.endswith("json"))

    @pytest.fixture
    def admin(self, backend: CliSlurm) -> SlurmAdmin:
        """The administrator's side."""
        return backend

    @pytest.fixture
    def jobs(self, backend: CliSlurm) -> SlurmJobs:
        """The submitter's side."""
        return backend


@pytest.mark.parametrize("form", FORMS)
def test_a_reason_that_forges_lines_is_read_whole_and_forges_nothing(form: str) -> None:
    path = RECORDINGS / form / "test_a_reason_of_three_thousand_characters_and_one_that_forges_lines.json"
    slurm = CliSlurm(replay(path), json=form.endswith("json"))
    long = "pipe|" * 600
    slurm.drain("n1", long)
    assert slurm.nodes(["n1"])[0].reason == long
    slurm.set_extra("n1", '{"passes":1}')
    found = {n.name: n for n in slurm.nodes()}
    assert set(found) == {"n1", "n2"}
    assert found["n1"].reason.endswith("[root@2020-01-01T00:00:00]")
    assert "\n" in found["n1"].reason
    assert (found["n1"].reason_uid, found["n1"].reason_user) == (0, "root")
    assert found["n2"].reason == ""
    assert found["n2"].states == {"IDLE"}


@pytest.mark.parametrize("form", FORMS)
def test_a_reservation_as_recorded(form: str) -> None:
    slurm = CliSlurm(
        replay(RECORDINGS / form / "test_reservations_are_listed_and_deleted.json"), json=form.endswith("json")
    )
    (found,) = slurm.reservations()
    assert (found.name, found.nodes, found.users) == ("kinemill1_test", ("n1", "n2"), ("root",))
    assert {"MAINT", "IGNORE_JOBS"} <= found.flags


@pytest.mark.parametrize("release", ["24.11", "26.05"])
def test_raw_json_of_a_busy_cluster_is_understood(release: str) -> None:
    nodes = {n.name: n for n in jsonform.nodes(json.dumps(load(release, "nodes.json")))}
    assert nodes["n1"].states >= {"IDLE", "DRAIN"}
    assert nodes["n1"].reason == "fan=3|replace by hand"
    assert "gpu:h200:2" in nodes["n2"].gres_used
    jobs = {j.name: j for j in jsonform.jobs(json.dumps(load(release, "jobs.json")))}
    running = jobs["running"]
    assert (running.state, running.nodes, running.restarts, running.exit_code) == ("RUNNING", ("n2",), 0, None)
    assert {j.state for j in jobs.values()} >= {"FAILED", "RUNNING", "PENDING"}
    assert "now" in {r.name for r in jsonform.reservations(json.dumps(load(release, "reservations.json")))}


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_raw_text_of_reservations_is_understood(release: str) -> None:
    found = {r.name: r for r in text.parse_reservations(load(release, "reservations.txt"))}
    assert found["now"].end_s > found["now"].start_s
