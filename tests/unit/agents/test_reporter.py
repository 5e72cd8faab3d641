"""The reporter's plan: a human's drain is untouchable, Slurm's own text becomes our reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.agents.reporter import SLURM_TEXTS, Act, plan, report_node
from kinemill.agents.state import Memory
from kinemill.agents.verdict import StoredVerdict
from kinemill.clock import FakeClock
from kinemill.contracts import NodeInfo, NodeReport
from kinemill.contracts.checks import CheckResult, CheckStatus
from kinemill.records import loads
from kinemill.slurm.fake import FakeSlurm

REASON = "kinemill1|gpu.ecc|T|ecc_vol_unc|9f31c2aa|gpu3: 1 uncorrected"
VERDICT = StoredVerdict("9f31c2aa", REASON, "prolog", 7, "boot", 1000, 0.2)
CLEAN = StoredVerdict("", "", "periodic", None, "boot", 1000, 0.2)
DRAINED = frozenset({"IDLE", "DRAIN"})


def node(states: frozenset[str] = frozenset({"IDLE"}), reason: str = "", at: int | None = None) -> NodeInfo:
    return NodeInfo("n1", states, reason=reason, reason_time_s=at)


@pytest.mark.parametrize("text", SLURM_TEXTS)
def test_slurms_own_newer_text_becomes_our_reason(text: str) -> None:
    assert plan(node(DRAINED, text, 1001), VERDICT, fault_open=True, passes=0).act is Act.EXPLAIN
    assert plan(node(DRAINED, f"{text} : more", 1001), VERDICT, fault_open=True, passes=0).act is Act.EXPLAIN
    assert plan(node(DRAINED, text, 900), VERDICT, fault_open=True, passes=0).act is Act.NOTHING
    assert plan(node(DRAINED, text, 1001), None, fault_open=False, passes=0).act is Act.NOTHING


@pytest.mark.parametrize("reason", ["do not touch, Kim", "Prolog error? asking vendor", "NHC: disk", ""])
def test_a_humans_drain_is_left_alone(reason: str) -> None:
    assert plan(node(DRAINED, reason, 5000), VERDICT, fault_open=True, passes=0).act is Act.NOTHING


def test_a_node_in_service_with_a_fault_is_drained() -> None:
    assert plan(node(), VERDICT, fault_open=True, passes=0).act is Act.DRAIN
    assert plan(node(frozenset({"ALLOCATED"})), VERDICT, fault_open=True, passes=0).act is Act.DRAIN


@pytest.mark.parametrize("state", ["UNKNOWN", "REBOOT_ISSUED", "POWERING_UP", "MAINT", "FUTURE", "PLANNED"])
def test_states_that_belong_to_others_are_left_alone(state: str) -> None:
    states = frozenset({"IDLE", state})
    assert plan(node(states), VERDICT, fault_open=True, passes=0).act is Act.NOTHING


def test_our_own_reason_is_not_written_again() -> None:
    assert plan(node(DRAINED, REASON, 1001), VERDICT, fault_open=True, passes=0).act is Act.NOTHING


def test_a_fault_is_closed_when_the_node_is_in_service_and_passes() -> None:
    assert plan(node(), CLEAN, fault_open=True, passes=2).act is Act.CLOSE
    assert plan(node(DRAINED, REASON, 1), CLEAN, fault_open=True, passes=2).act is Act.NOTHING
    assert plan(node(), CLEAN, fault_open=True, passes=0).act is Act.NOTHING


@given(
    st.frozensets(st.sampled_from(["IDLE", "DRAIN", "DOWN", "ALLOCATED", "UNKNOWN", "MAINT"]), min_size=1),
    st.text(max_size=80),
)
def test_no_reason_of_a_stranger_is_ever_overwritten(states: frozenset[str], reason: str) -> None:
    move = plan(node(states, reason, 99_999), VERDICT, fault_open=True, passes=1)
    if "DRAIN" in states and reason.split(" : ", 1)[0].strip() not in SLURM_TEXTS:
        assert move.act is Act.NOTHING


class Slow(FakeSlurm):
    """A human drains between our two looks."""

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """As the fake, and then the human acts."""
        found = super().nodes(names)
        if len(self.calls) == 1:
            self.drain("n1", "Kim looks at it")
        return found


def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path / "agents", "boot", 1000)


def test_a_human_who_is_quicker_wins(tmp_path: Path) -> None:
    slurm = Slow(FakeClock())
    move = report_node("n1", slurm, VERDICT, memory(tmp_path), "boot")
    assert move.act is Act.NOTHING
    assert slurm.node_table["n1"].reason == "Kim looks at it"


def test_the_reason_and_the_report_reach_slurm(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock())
    mine = memory(tmp_path)
    fault = mine.open(CheckResult("gpu.ecc", CheckStatus.FAIL, code="ecc_vol_unc"), "T")
    mine.clean_pass(fault)
    move = report_node("n1", slurm, VERDICT, mine, "boot")
    assert move.act is Act.DRAIN
    shown = slurm.node_table["n1"]
    assert shown.reason == REASON
    assert loads(NodeReport, shown.extra) == NodeReport(fault.event, "boot", 1, 1000)


def test_a_verdict_from_before_the_reboot_drains_nobody(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock())
    assert report_node("n1", slurm, VERDICT, memory(tmp_path), "another boot").act is Act.NOTHING
    assert "DRAIN" not in slurm.node_table["n1"].states
