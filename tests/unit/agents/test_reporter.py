"""The reporter's plan: a human's drain is untouchable, Slurm's own text becomes our reason."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.agents.reporter import SLURM_TEXTS, Act, plan, report_node
from kinemill.agents.state import Memory, OpenFault
from kinemill.agents.verdict import reason_of
from kinemill.clock import FakeClock
from kinemill.contracts import JobRequest, NodeInfo, NodeReport, parse_reason
from kinemill.contracts.checks import CheckResult, CheckStatus
from kinemill.errors import NotFoundError, UnavailableError
from kinemill.records import loads
from kinemill.slurm.fake import FakeSlurm

FAULT = OpenFault("9f31c2aa", "gpu.ecc", "T", "ecc_vol_unc", "gpu3: 1 uncorrected", "boot", 1000)
REASON = reason_of(FAULT)
PASSED = dataclasses.replace(FAULT, passes=2, last_pass_s=1060)
DRAINED = frozenset({"IDLE", "DRAIN"})
CAUSE = CheckResult("gpu.ecc", CheckStatus.FAIL, code="ecc_vol_unc", detail="gpu3: 1 uncorrected")


def node(states: frozenset[str] = frozenset({"IDLE"}), reason: str = "", at: int | None = None) -> NodeInfo:
    return NodeInfo("n1", states, reason=reason, reason_time_s=at)


@pytest.mark.parametrize("text", SLURM_TEXTS)
def test_slurms_own_newer_text_becomes_our_reason(text: str) -> None:
    assert plan(node(DRAINED, text, 1001), FAULT, "boot").act is Act.EXPLAIN
    assert plan(node(DRAINED, f"{text} : more", 1001), FAULT, "boot").act is Act.EXPLAIN
    assert plan(node(DRAINED, text, 900), FAULT, "boot").act is Act.NOTHING
    assert plan(node(DRAINED, text, None), FAULT, "boot").act is Act.NOTHING
    assert plan(node(DRAINED, text, 1001), None, "boot").act is Act.NOTHING


def test_a_fault_that_was_cured_or_rebooted_away_still_explains_its_drain() -> None:
    """A prolog's fault, a clean periodic run before the reporter came: the text is still ours to explain."""
    assert plan(node(DRAINED, "Prolog error", 1001), PASSED, "boot").act is Act.EXPLAIN
    assert plan(node(DRAINED, "Prolog error", 1001), FAULT, "another boot").act is Act.EXPLAIN


@pytest.mark.parametrize("reason", ["do not touch, Kim", "Prolog error? asking vendor", "NHC: disk", ""])
def test_a_humans_drain_is_left_alone(reason: str) -> None:
    """NVIDIA/NVSentinel#1424: what another cordoned stays cordoned."""
    assert plan(node(DRAINED, reason, 5000), FAULT, "boot").act is Act.NOTHING


def test_a_node_in_service_with_a_fault_is_drained() -> None:
    assert plan(node(), FAULT, "boot").act is Act.DRAIN
    assert plan(node(frozenset({"ALLOCATED"})), FAULT, "boot").act is Act.DRAIN


def test_a_fault_from_before_the_reboot_drains_nobody() -> None:
    assert plan(node(), FAULT, "another boot").act is Act.NOTHING


@pytest.mark.parametrize("state", ["UNKNOWN", "REBOOT_ISSUED", "POWERING_UP", "MAINT", "FUTURE", "PLANNED"])
def test_states_that_belong_to_others_are_left_alone(state: str) -> None:
    """aws/aws-parallelcluster#7470: a user's MAINT reservation on a node is the user's."""
    assert plan(node(frozenset({"IDLE", state})), FAULT, "boot").act is Act.NOTHING


def test_our_own_reason_is_not_written_again() -> None:
    assert plan(node(DRAINED, REASON, 1001), FAULT, "boot").act is Act.NOTHING


def test_a_fault_is_closed_when_the_node_is_in_service_and_passes() -> None:
    assert plan(node(), PASSED, "boot").act is Act.CLOSE
    assert plan(node(DRAINED, REASON, 1), PASSED, "boot").act is Act.NOTHING


@given(
    st.frozensets(st.sampled_from(["IDLE", "DRAIN", "DOWN", "ALLOCATED", "UNKNOWN", "MAINT"]), min_size=1),
    st.text(max_size=80),
    st.integers(min_value=0, max_value=3),
)
def test_no_reason_of_a_stranger_is_ever_overwritten(states: frozenset[str], reason: str, passes: int) -> None:
    move = plan(node(states, reason, 99_999), dataclasses.replace(FAULT, passes=passes), "boot")
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


class Silent(FakeSlurm):
    """A controller that does not answer."""

    def nodes(self, names: Sequence[str] = ()) -> list[NodeInfo]:
        """Never."""
        raise UnavailableError("slurmctld does not answer")


def memory(tmp_path: Path, boot: str = "boot", now: int = 1000) -> Memory:
    return Memory(tmp_path / "agents", boot, now)


def test_a_human_who_is_quicker_wins(tmp_path: Path) -> None:
    slurm = Slow(FakeClock())
    memory(tmp_path).open(CAUSE, "T")
    assert report_node("n1", slurm, memory(tmp_path), "boot").act is Act.NOTHING
    assert slurm.node_table["n1"].reason == "Kim looks at it"


def test_a_state_that_cannot_be_read_means_hands_off(tmp_path: Path) -> None:
    """mej/nhc#134: the state query came back empty, the node was marked again, and a human's drain was lifted."""
    slurm = Silent(FakeClock())
    memory(tmp_path).open(CAUSE, "T")
    with pytest.raises(UnavailableError):
        report_node("n1", slurm, memory(tmp_path), "boot")
    assert slurm.calls == []
    assert memory(tmp_path).open_fault() is not None


def test_the_reason_and_the_report_reach_slurm(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock())
    fault = memory(tmp_path).open(CAUSE, "T")
    assert report_node("n1", slurm, memory(tmp_path), "boot").act is Act.DRAIN
    shown = slurm.node_table["n1"]
    event = parse_reason(shown.reason)
    assert event is not None
    assert (event.check, event.letter, event.code, event.event) == ("gpu.ecc", "T", "ecc_vol_unc", fault.event)
    assert loads(NodeReport, shown.extra) == NodeReport(fault.event, "boot", 0, 0)
    memory(tmp_path, now=1060).clean_pass(fault)
    assert report_node("n1", slurm, memory(tmp_path), "boot").act is Act.NOTHING
    assert loads(NodeReport, slurm.node_table["n1"].extra) == NodeReport(fault.event, "boot", 1, 1060)
    slurm.resume("n1")
    assert report_node("n1", slurm, memory(tmp_path), "boot").act is Act.CLOSE
    assert memory(tmp_path).open_fault() is None
    assert loads(NodeReport, slurm.node_table["n1"].extra).event == ""


def test_an_unchanged_report_is_not_written_again(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock())
    for _ in range(3):
        report_node("n1", slurm, memory(tmp_path), "boot")
    assert slurm.calls == [("nodes", "n1"), ("set_extra", "n1")], "a healthy node leaves the controller in peace"
    report_node("n1", slurm, memory(tmp_path, now=1700), "boot")
    assert slurm.calls[2:] == [("nodes", "n1")], "it looks again now and then"
    memory(tmp_path, now=1710).open(CAUSE, "T")
    assert report_node("n1", slurm, memory(tmp_path, now=1711), "boot").act is Act.DRAIN


def test_notes_reach_their_jobs_and_a_job_that_is_gone_loses_its_note(tmp_path: Path) -> None:
    slurm = FakeSlurm(FakeClock())
    job = slurm.submit(JobRequest(tmp_path, "a"))
    memory(tmp_path).add_note(job, "XID 31")
    memory(tmp_path).add_note(4242, "XID 13")
    report_node("n1", slurm, memory(tmp_path), "boot")
    assert slurm.notes == {job: "XID 31"}
    assert memory(tmp_path).notes() == [(4242, "XID 13", 0)], "accounting may learn of the job yet"
    report_node("n1", slurm, memory(tmp_path, now=2000), "boot")
    assert memory(tmp_path).notes() == []
    with pytest.raises(NotFoundError):
        slurm.note(4242, "x")


ACTS = ("human", "resume", "slurm", "fault", "other fault", "pass", "reboot", "report")


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(ACTS), max_size=25))
def test_in_any_order_of_events_a_humans_drain_stays_as_it_is(acts: list[str]) -> None:
    """Humans, Slurm and the agent write in any order; only Slurm's own text and a node in service are changed."""
    with tempfile.TemporaryDirectory() as folder:
        clock, boot = FakeClock(), 0
        slurm = FakeSlurm(clock)
        for act in acts:
            clock.advance(7)
            mine = Memory(Path(folder) / "agents", f"boot-{boot}", clock.now_ns() // 10**9)
            shown = slurm.node_table["n1"]
            drained = "DRAIN" in shown.states
            if act == "human":
                slurm.drain("n1", "Kim looks at it")
            elif act == "resume" and drained:
                slurm.resume("n1")
            elif act == "slurm" and not drained:
                slurm.drain("n1", "Prolog error")
            elif act == "fault":
                mine.open(CAUSE, "T")
            elif act == "other fault":
                mine.open(CheckResult("mounts", CheckStatus.FAIL, code="mount_hang"), "T")
            elif act == "pass" and (fault := mine.open_fault()) is not None:
                mine.clean_pass(fault)
            elif act == "reboot":
                boot += 1
            elif act == "report":
                report_node("n1", slurm, mine, f"boot-{boot}")
                after = slurm.node_table["n1"]
                if drained:
                    assert "DRAIN" in after.states, "the reporter never resumes"
                    if shown.reason != "Prolog error":
                        assert (after.reason, after.reason_time_s) == (shown.reason, shown.reason_time_s)
                elif "DRAIN" in after.states:
                    assert parse_reason(after.reason) is not None
