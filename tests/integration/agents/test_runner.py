"""The runner with real children: hangs, crashes, floods and half answers."""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from kinemill.agents import runner
from kinemill.agents.checks import fail, ok, unknown, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.agents.probes import Emit
from kinemill.agents.runner import run_checks, run_probes
from kinemill.contracts.checks import Check, CheckContext, CheckResult, CheckStatus
from kinemill.process import ProcessId
from support.agents import context

Read = Callable[[Context, Emit], None]


@pytest.fixture
def probes() -> Iterator[Callable[..., None]]:
    """Register probes that live for one test."""
    added: list[str] = []

    def add(**reads: Read) -> None:
        for name, read in reads.items():
            module: Any = types.ModuleType(f"kinemill.agents.probes.{name}")
            module.read = read
            sys.modules[module.__name__] = module
            added.append(module.__name__)

    yield add
    for name in added:
        del sys.modules[name]


@dataclass
class Module:
    """A check for tests: OK if its key was read as 1."""

    name: str
    NEEDS: tuple[str, ...]
    key: str
    cache_s: float = 0.0

    @property
    def CHECK(self) -> Check:  # noqa: N802 a module's constant
        """Its declaration."""
        return Check(self.name, 1, (CheckContext.PERIODIC,), cache_s=self.cache_s)

    def judge(self, facts: Facts, ctx: Context) -> CheckResult:
        """Pure."""
        del ctx
        value = facts.get(self.key)
        if value is None:
            return worst(self.CHECK, [unknown("unread", facts.how(self.NEEDS[0]))])
        return worst(self.CHECK, [ok() if value == 1 else fail("bad", str(value), source="test")])


def hang(ctx: Context, emit: Emit) -> None:
    """Says one thing and never returns."""
    del ctx
    emit("first", 1)
    while True:
        time.sleep(60)


def children() -> set[int]:
    """This process's children, those that ended and were not waited for among them."""
    return {child.pid for child in psutil.Process().children()}


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has to answer may take its time here; a test of a hang says how long it waits for it."""
    monkeypatch.setitem(run_probes.__kwdefaults__, "timeout_s", 60.0)
    monkeypatch.setattr(runner, "BUDGET_S", 600.0)
    monkeypatch.setattr(runner, "_REAP_S", 60.0)


def test_a_hanging_probe_costs_its_deadline_only_and_keeps_what_it_said(probes: Callable[..., None]) -> None:
    probes(hang_a=hang, hang_b=hang, good=lambda ctx, emit: emit("good", 1))
    before = children()
    facts = run_probes(context(), ["hang_a", "hang_b", "good"], timeout_s=6, longer={"good": 60.0})
    assert facts.ended == {"hang_a": "timeout", "hang_b": "timeout", "good": "ok"}
    assert (facts.get("first"), facts.get("good")) == (1, 1)
    assert children() <= before


def test_a_probe_that_may_take_longer_does(probes: Callable[..., None]) -> None:
    def slow(ctx: Context, emit: Emit) -> None:
        time.sleep(0.4)
        emit("slow", 1)

    probes(slow=slow, hang=hang)
    facts = run_probes(context(), ["slow", "hang"], timeout_s=0.1, longer={"slow": 30.0})
    assert facts.ended == {"slow": "ok", "hang": "timeout"}


def test_a_crash_is_one_probes_own(probes: Callable[..., None]) -> None:
    def boom(ctx: Context, emit: Emit) -> None:
        emit("before", 1)
        raise RuntimeError("lib is broken")

    def die(ctx: Context, emit: Emit) -> None:
        os.kill(os.getpid(), 9)

    probes(boom=boom, die=die, good=lambda ctx, emit: emit("good", 1))
    facts = run_probes(context(), ["boom", "die", "good"])
    assert facts.ended == {"boom": "died(3)", "die": "died(-9)", "good": "ok"}
    assert facts.get("before") == 1
    assert "lib is broken" in facts.get("probe.boom.error")


def test_a_flood_is_cut(probes: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    def flood(ctx: Context, emit: Emit) -> None:
        for i in range(10_000_000):
            emit(f"k{i % 10}", "x" * 1000)

    monkeypatch.setattr(runner, "_MAX_BYTES", 1 << 20)
    probes(flood=flood)
    facts = run_probes(context(), ["flood"], timeout_s=20)
    assert facts.ended == {"flood": "timeout"}
    assert len(facts.values) <= 10


def test_grandchildren_die_with_a_hanging_probe(probes: Callable[..., None], tmp_path: Path) -> None:
    def spawn(ctx: Context, emit: Emit) -> None:
        pid = os.fork()
        if pid == 0:
            time.sleep(60)
            os._exit(0)
        emit("pid", pid)
        time.sleep(60)

    probes(spawn=spawn)
    pid = run_probes(context(), ["spawn"], timeout_s=6).get("pid")
    assert pid is not None, "the probe did not come to its fork"
    until = time.monotonic() + 60
    while ProcessId.of(pid) is not None:
        assert time.monotonic() < until, f"grandchild {pid} outlived the probe"
        time.sleep(0.01)


def test_a_child_that_cannot_be_killed_is_left_and_counted(
    probes: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck: list[int] = []
    real_kill, real_killpg = os.kill, os.killpg

    def deaf(pid: int, sig: int) -> None:
        stuck.append(pid)

    monkeypatch.setattr(runner.os, "kill", deaf)
    monkeypatch.setattr(runner.os, "killpg", deaf)
    probes(hang=hang, good=lambda ctx, emit: emit("good", 1))
    modules = {"a": Module("a", ("hang",), "never"), "b": Module("b", ("good",), "good")}
    monkeypatch.setattr(runner, "PROBE_S", 6)
    monkeypatch.setattr(runner, "_REAP_S", 4.0)
    monkeypatch.setattr(runner, "run_probes", lambda ctx, names, longer: run_probes(ctx, names, timeout_s=6))
    report = run_checks(context(), modules=modules)
    assert report.unreaped == ("hang",)
    assert [r.status for r in report.results] == [CheckStatus.UNKNOWN, CheckStatus.OK]
    monkeypatch.setattr(runner.os, "kill", real_kill)
    monkeypatch.setattr(runner.os, "killpg", real_killpg)
    for pid in set(stuck):
        real_killpg(pid, 9)
        os.waitpid(pid, 0)


@pytest.mark.parametrize("runs", [50, pytest.param(1000, marks=pytest.mark.full("agents"))])
def test_run_after_run_leaves_no_zombie_and_no_descriptor(probes: Callable[..., None], runs: int) -> None:
    def boom(ctx: Context, emit: Emit) -> None:
        raise RuntimeError("broken")

    probes(good=lambda ctx, emit: emit("good", 1), boom=boom, hang=hang)
    before, descriptors = children(), open_descriptors()
    for turn in range(runs):
        names = ["good", "boom", *(["hang"] if turn % 50 == 0 else [])]
        run_probes(context(), names, timeout_s=0.2 if "hang" in names else 60)
    assert children() <= before
    # Others of this process open and close theirs meanwhile; a leak would be one or more a run.
    assert open_descriptors() - descriptors < runs // 2


def test_one_flaky_answer_condemns_nobody(probes: Callable[..., None], tmp_path: Path) -> None:
    """nebius/soperator#1232: a GPU count that was short only at the start of slurmd is measured again."""

    def flaky(ctx: Context, emit: Emit) -> None:
        seen = tmp_path / "seen"
        emit("flaky", 1 if seen.exists() else 0)
        seen.touch()

    probes(flaky=flaky)
    report = run_checks(context(), modules={"a": Module("a", ("flaky",), "flaky")})
    assert report.results[0].status is CheckStatus.OK


def test_a_fault_that_stays_fails_and_a_hang_is_not_tried_again(probes: Callable[..., None], tmp_path: Path) -> None:
    def counted(ctx: Context, emit: Emit) -> None:
        with (tmp_path / "runs").open("a") as out:
            out.write("x")
        emit("bad", 0)

    probes(bad=counted)
    report = run_checks(context(), modules={"a": Module("a", ("bad",), "bad")})
    assert report.results[0].status is CheckStatus.FAIL
    assert (tmp_path / "runs").read_text() == "xx"


def test_a_disabled_check_is_reported_and_its_probe_not_run(probes: Callable[..., None]) -> None:
    probes(hang=hang)
    report = run_checks(context(), modules={"a": Module("a", ("hang",), "x")}, disabled={"a": "the inventory"})
    (result,) = report.results
    assert (result.status, result.code) == (CheckStatus.SKIP, "disabled")
    assert "the inventory" in result.detail
    assert report.facts.ended == {}


def test_cached_facts_are_used_while_young_enough_and_their_age_is_shown(probes: Callable[..., None]) -> None:
    probes(slow=lambda ctx, emit: emit("slow", 1))
    modules = {"a": Module("a", ("slow",), "slow", cache_s=60)}
    young = Facts({"slow": 0}, {"slow": "ok"}, {"slow": 30.0})
    old = Facts({"slow": 0}, {"slow": "ok"}, {"slow": 90.0})
    assert run_checks(context(), modules=modules, cached=old).results[0].status is CheckStatus.OK
    used = run_checks(context(), modules=modules, cached=Facts({"slow": 1}, {"slow": "ok"}, {"slow": 30.0}))
    assert (used.results[0].status, used.results[0].age_s) == (CheckStatus.OK, 30.0)
    condemned = run_checks(context(), modules=modules, cached=young)
    assert condemned.results[0].status is CheckStatus.OK, "a cached fault is measured again before it counts"


def test_a_judge_that_trips_has_not_measured(probes: Callable[..., None]) -> None:
    class Broken(Module):
        """Raises."""

        def judge(self, facts: Facts, ctx: Context) -> CheckResult:
            """Never returns."""
            raise IndexError("garbage")

    probes(good=lambda ctx, emit: emit("good", 1))
    report = run_checks(context(), modules={"a": Broken("a", ("good",), "good"), "b": Module("b", ("good",), "good")})
    assert [r.status for r in report.results] == [CheckStatus.UNKNOWN, CheckStatus.OK]
