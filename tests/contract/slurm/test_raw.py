"""What the recorded outputs of each release hold: the differences that readers must bear."""

from __future__ import annotations

import pytest

from support.slurm_raw import COMMANDS, RAW, VERSIONS, load

WITH_JSON = ["24.11", "26.05"]


@pytest.mark.parametrize("release", VERSIONS)
def test_every_command_was_recorded(release: str) -> None:
    absent = {"nodes.json", "jobs.json", "reservations.json"} if release == "22.05" else set()
    assert {path.name for path in (RAW / release).iterdir()} == set(COMMANDS) - absent


@pytest.mark.parametrize("release", VERSIONS)
def test_the_scene_is_in_the_text(release: str) -> None:
    nodes = {line.split()[0]: line for line in load(release, "nodes.txt").splitlines() if line}
    assert set(nodes) == {"NodeName=n1", "NodeName=n2"}
    assert "DRAIN" in nodes["NodeName=n1"]
    assert "Reason=fan=3|replace by hand [root@" in nodes["NodeName=n1"]
    assert "GresUsed=gpu:h200:2" in nodes["NodeName=n2"]
    states = [line.split("|")[1] for line in load(release, "sacct.txt").splitlines()[1:]]
    assert {"COMPLETED", "FAILED", "RUNNING", "PENDING"} <= set(states)
    assert "ReservationName=now" in load(release, "reservations.txt")


@pytest.mark.parametrize("release", WITH_JSON)
def test_states_are_lists_from_24_11_on(release: str) -> None:
    nodes = {node["name"]: node for node in load(release, "nodes.json")["nodes"]}
    assert {"IDLE", "DRAIN"} <= set(nodes["n1"]["state"])
    assert nodes["n1"]["reason"] == "fan=3|replace by hand"
    job = {job["name"]: job for job in load(release, "jobs.json")["jobs"]}["running"]
    assert job["job_state"] == ["RUNNING"]
    assert job["restart_cnt"] == 0


@pytest.mark.parametrize("release", WITH_JSON)
def test_reservations_in_json_have_neither_comment_nor_state(release: str) -> None:
    for found in load(release, "reservations.json")["reservations"]:
        assert not {"comment", "state"} & set(found)
        assert {"name", "start_time", "end_time", "flags"} <= set(found)


def test_states_are_words_in_22_05() -> None:
    node = {node["name"]: node for node in load("22.05", "sinfo.json")["nodes"]}["n1"]
    assert isinstance(node["state"], str)
    assert "DRAIN" in node["state_flags"]
