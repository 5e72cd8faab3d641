"""What every Slurm backend must do on a cluster with nodes n1 and n2, both idle."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.contracts import JobRequest, SlurmAdmin, SlurmJobs
from kinemill.errors import NotFoundError, StateError


class SlurmContract:
    """Inherit, and give fixtures `admin` and `jobs`."""

    def test_it_is_both(self, admin: SlurmAdmin, jobs: SlurmJobs) -> None:
        assert isinstance(admin, SlurmAdmin)
        assert isinstance(jobs, SlurmJobs)

    def test_nodes_are_listed_with_upper_case_states(self, admin: SlurmAdmin) -> None:
        found = {n.name: n for n in admin.nodes()}
        assert set(found) == {"n1", "n2"}
        assert all("IDLE" in n.states for n in found.values())
        assert [n.name for n in admin.nodes(["n2"])] == ["n2"]
        with pytest.raises(NotFoundError, match="n9"):
            admin.nodes(["n9"])

    def test_a_drain_shows_its_reason_and_a_resume_clears_it(self, admin: SlurmAdmin) -> None:
        admin.drain("n1", "kinemill1|disk.space|T|full|00000001|/var 99 %")
        node = admin.nodes(["n1"])[0]
        assert "DRAIN" in node.states
        assert node.reason.startswith("kinemill1|disk.space|T|full|00000001|")
        assert node.reason_time_s is not None
        assert node.reason_uid == 0
        admin.resume("n1")
        after = admin.nodes(["n1"])[0]
        assert "DRAIN" not in after.states
        assert after.reason == ""

    def test_an_idle_node_is_not_resumed(self, admin: SlurmAdmin) -> None:
        with pytest.raises(StateError, match="n2"):
            admin.resume("n2")

    def test_extra_travels_to_the_controller(self, admin: SlurmAdmin) -> None:
        admin.set_extra("n2", '{"passes":2}')
        node = admin.nodes(["n2"])[0]
        assert '{"passes":2}' in (node.extra, node.comment)

    def test_an_unknown_job_and_reservation_are_not_found(self, admin: SlurmAdmin, jobs: SlurmJobs) -> None:
        with pytest.raises(NotFoundError, match="4242"):
            jobs.state(4242)
        with pytest.raises(NotFoundError, match="nobody"):
            admin.delete_reservation("nobody")

    def test_a_job_is_submitted_held_released_and_cancelled(self, jobs: SlurmJobs, tmp_path: Path) -> None:
        script = tmp_path / "job.sh"
        script.write_text("#!/bin/sh\nsleep 60\n")
        job_id = jobs.submit(JobRequest(script, "contract", comment="key-1"))
        assert jobs.state(job_id).comment == "key-1"
        jobs.hold(job_id)
        jobs.release(job_id)
        jobs.cancel(job_id)
        jobs.cancel(job_id)
        assert jobs.state(job_id).state in ("CANCELLED", "COMPLETING")
