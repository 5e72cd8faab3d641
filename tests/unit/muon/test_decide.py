"""The choice between node and world: a table, a model, and a memory."""

from __future__ import annotations

import pytest

from kinemill.errors import UsageError
from kinemill.training.muon import cost
from kinemill.training.muon.decide import Decision, changed, choose
from kinemill.training.muon.site import MuonSettings

SHAPES = [shape for _ in range(32) for shape in [(4096, 4096)] * 4 + [(11008, 4096)] * 2 + [(4096, 11008)]]
UNKNOWN = MuonSettings()


def decide(asked: str = "auto", *, nodes: int, threshold: int | None = None, site: MuonSettings = UNKNOWN) -> Decision:
    return choose(asked, nodes=nodes, ranks=8, shapes=SHAPES, node_threshold=threshold, site=site)


@pytest.mark.parametrize(
    ("nodes", "threshold", "expected"),
    [(1, 8, "node"), (2, 8, "world"), (8, 8, "world"), (9, 8, "node"), (2, 0, "node"), (2, 1, "node")],
)
def test_the_callers_threshold_decides(nodes: int, threshold: int, expected: str) -> None:
    assert decide(nodes=nodes, threshold=threshold).strategy == expected


def test_the_inventorys_threshold_decides_where_the_caller_gave_none() -> None:
    site = MuonSettings(node_threshold=4, fabric_gbps=1.0)

    assert decide(nodes=4, site=site).strategy == "world"
    assert decide(nodes=4, threshold=2, site=site).strategy == "node"
    assert "node_threshold 4 of the inventory" in decide(nodes=4, site=site).reason


def test_without_any_figure_it_is_node_and_the_reason_says_what_to_do() -> None:
    found = decide(nodes=16)

    assert found.strategy == "node"
    assert found.implied_threshold is None
    assert "--measure" in found.reason


@pytest.mark.parametrize(("gbps", "expected"), [(100, "node"), (200, "node"), (3200, "world")])
def test_the_model_decides_from_the_fabric_figure(gbps: float, expected: str) -> None:
    found = decide(nodes=4, site=MuonSettings(fabric_gbps=gbps))

    assert found.strategy == expected
    assert "ms" in found.reason
    assert (found.implied_threshold or 0) >= 4 if expected == "world" else found.implied_threshold == 0


@pytest.mark.parametrize("asked", ["node", "world", "replicated"])
def test_what_is_asked_for_is_done(asked: str) -> None:
    assert decide(asked, nodes=4, threshold=1).strategy == asked


def test_the_same_arguments_give_the_same_decision() -> None:
    site = MuonSettings(fabric_gbps=1600)

    assert {decide(nodes=6, site=site) for _ in range(20)} == {decide(nodes=6, site=site)}


@pytest.mark.parametrize("threshold", [-1, True])
def test_a_threshold_that_is_none_is_refused(threshold: int) -> None:
    with pytest.raises(UsageError, match="node_threshold"):
        decide(nodes=2, threshold=threshold)
    with pytest.raises(UsageError, match="strategy 'pod'"):
        decide("pod", nodes=2)


def test_a_flip_on_resume_is_a_sentence_with_both_reasons() -> None:
    before = decide(nodes=2, threshold=8)
    same, flipped = decide(nodes=8, threshold=8), decide(nodes=9, threshold=8)

    assert changed(before.as_dict(), same) is None
    text = changed(before.as_dict(), flipped)
    assert text is not None
    assert before.reason in text
    assert flipped.reason in text


def test_world_pays_off_only_above_a_bandwidth_and_one_node_has_no_choice() -> None:
    def rates(fabric: float) -> cost.Rates:
        return cost.Rates(flops=5e14, fabric=fabric, link=3.6e11, latency_s=1.2e-5)

    slow = cost.estimate(SHAPES, 8, 8, rates(1e10))
    fast = cost.estimate(SHAPES, 8, 8, rates(1e12))

    assert slow.faster == "node"
    assert fast.faster == "world"
    assert slow.world_fabric_bytes == pytest.approx(2 * sum(r * c for r, c in SHAPES) * 7 / 8)
    assert not cost.world_wins(SHAPES, 1, 8, rates(1e12))


def test_a_choice_within_the_margin_stays_on_the_node() -> None:
    assert cost.Estimate(4, 1.0, 0.91, 0.0).faster == "node"
    assert cost.Estimate(4, 1.0, 0.89, 0.0).faster == "world"


@pytest.mark.parametrize(
    "bad", [{"node_threshold": -1}, {"fabric_gbps": 0.0}, {"rank_tflops": -1.0}, {"efficiency": 0.0}]
)
def test_impossible_facts_are_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        MuonSettings(**bad)  # type: ignore[arg-type]  # one field at a time
