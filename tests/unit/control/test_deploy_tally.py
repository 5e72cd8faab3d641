"""From the events of ansible-runner to counts, times and failures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinemill.control.deploy.record import HostLine
from kinemill.control.deploy.tally import Tally, message_of


class Script:
    """Events as ansible-runner gives them, a second apart unless told otherwise."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.second = 0

    def send(self, event: str, *, after_s: int = 1, stdout: str = "", **data: Any) -> None:
        self.second += after_s
        created = f"2026-01-01T00:{self.second // 60:02d}:{self.second % 60:02d}.000000+00:00"
        self.tally.feed({"event": event, "created": created, "stdout": stdout, "event_data": data})

    def play(self, name: str) -> None:
        self.send("playbook_on_play_start", play=name, name=name)

    def task(self, name: str, role: str = "", after_s: int = 1) -> None:
        self.send("playbook_on_task_start", after_s=after_s, play="p", task=name, **({"role": role} if role else {}))

    def result(self, kind: str, host: str, role: str = "base", **result: Any) -> None:
        self.send(
            f"runner_on_{kind}",
            host=host,
            role=role,
            task="t",
            task_path="/repo/roles/base/tasks/main.yml:3",
            res=result,
        )


@pytest.fixture
def tally() -> Tally:
    return Tally(Path("/repo"))


@pytest.fixture
def script(tally: Tally) -> Script:
    return Script(tally)


def test_time_goes_to_the_role_whose_task_runs(tally: Tally, script: Script) -> None:
    # given two roles, the first of which comes back later, and a task of a play without a role
    script.play("nodes")
    script.task("look", "base")
    script.task("install", "base", after_s=10)
    script.task("key", "munge", after_s=20)
    script.play("end")
    script.task("once more", "base", after_s=5)
    script.task("loose", "", after_s=2)
    script.send("playbook_on_stats", after_s=4)
    # then each second is counted once, from the first task on
    assert [(role.role, role.seconds, role.tasks) for role in tally.roles] == [
        ("base", 10 + 20 + 2, 3),
        ("munge", 1, 1),
        ("p", 4, 1),
    ]
    assert tally.finished


def test_results_are_counted_by_host(tally: Tally, script: Script) -> None:
    # given results of every kind
    script.task("t", "base")
    script.result("ok", "n1", changed=True)
    script.result("ok", "n1", changed=False)
    script.result("skipped", "n1")
    script.result("failed", "n2", msg="no")
    script.result("unreachable", "n3", msg="Connection refused")
    tally.expect("n4")
    # then each host has its own
    assert tally.hosts["n1"] == HostLine(ok=2, changed=1, skipped=1)
    assert [tally.hosts[name].state for name in ("n1", "n2", "n3", "n4")] == [
        "changed",
        "failed",
        "unreachable",
        "untouched",
    ]
    assert tally.roles[0].changed == 1


def test_a_failure_carries_its_remedy_and_its_place(tally: Tally, script: Script) -> None:
    # given a task that fails for a reason that is known
    script.task("t", "base")
    script.result("failed", "n1", msg="write error", stderr="tar: No space left on device")
    # then the failure says what to do, and where it happened relative to the repository
    failure = tally.failures[0]
    assert failure.where == "roles/base/tasks/main.yml:3"
    assert failure.meaning == "a disk is full"
    assert "room" in failure.action
    assert not failure.transient


def test_what_a_playbook_caught_is_no_failure(tally: Tally, script: Script) -> None:
    # given a failure that a rescue caught, one that is ignored, and one that is neither
    script.task("t", "base")
    script.result("failed", "n1", msg="caught")
    script.send("runner_on_failed", host="n2", role="base", task="t", res={"msg": "ignored"}, ignore_errors=True)
    script.result("failed", "n3", msg="real")
    script.send(
        "playbook_on_stats",
        ok={"n1": 5, "n2": 5, "n3": 1},
        failures={"n3": 1},
        rescued={"n1": 1},
        ignored={"n2": 1},
        dark={},
        changed={},
        skipped={},
    )
    # then only the last one counts
    assert [failure.message for failure in tally.failures if not failure.tolerated] == ["real"]
    assert (tally.hosts["n1"].state, tally.hosts["n2"].state, tally.hosts["n3"].state) == ("ok", "ok", "failed")
    assert tally.hosts["n1"].rescued == 1


def test_what_ansible_itself_says_is_kept(tally: Tally, script: Script) -> None:
    # given a playbook that Ansible cannot even start
    script.send("verbose", stdout="[WARNING]: something")
    script.send("verbose", stdout="[ERROR]: the role 'bse' was not found")
    script.send("verbose", stdout="Origin: /repo/site.yml:3:7")
    # then the complaint is there with its place
    assert tally.complaint == "[ERROR]: the role 'bse' was not found\nOrigin: /repo/site.yml:3:7"
    assert not tally.finished


def test_odd_events_do_no_harm(tally: Tally, script: Script) -> None:
    # given events without what they should have
    tally.feed({})
    tally.feed({"event": "runner_on_ok", "event_data": None})
    tally.feed({"event": "playbook_on_task_start", "created": "yesterday", "event_data": {"task": "t"}})
    tally.feed({"event": "runner_on_failed", "event_data": {"host": "n1", "res": "text"}})
    script.send("playbook_on_stats", ok=None)
    # then what can be known is known
    assert tally.failures[0].host == "n1"
    assert tally.failures[0].message == "it said nothing"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": ["one", "two"]}, "one\ntwo"),
        ({"msg": "short", "stderr": "long story"}, "short\nlong story"),
        ({"msg": "same", "stderr": "same", "stdout": "more"}, "same\nmore"),
        ({"results": [{"item": "a"}, {"item": "b", "failed": True, "msg": "bad"}]}, "item b: bad"),
        ({"censored": "the output has been hidden"}, "no_log"),
        ({}, "it said nothing"),
    ],
)
def test_message_of_a_result(result: dict[str, Any], said: str) -> None:
    assert said in message_of(result)
