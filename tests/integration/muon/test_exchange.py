"""Groups are warmed, work overlaps, bytes are what the arithmetic says."""

from __future__ import annotations

import pytest

from support.muon import Fleet
from support.muon_work import order_of_events, train_call, warmed

ALTERNATING = ((0, 2), (1, 3))
"""Nodes that no other test has: groups that stand open for an earlier optimizer would not be warmed again."""


def test_every_group_is_warmed_at_construction(four: Fleet) -> None:
    """PrimeIntellect-ai/prime-rl#3490: the first exchange of a step deadlocked on two nodes."""
    found = four.run(warmed, ALTERNATING)

    for rank, groups in enumerate(found):
        node = ALTERNATING[rank % 2]
        cross = tuple(n[rank // 2] for n in ALTERNATING)
        assert {(0, 1, 2, 3), node, cross} <= set(groups)


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("strategy", ["node", "world"])
def test_a_bucket_travels_while_the_next_is_computed(four: Fleet, strategy: str, sharded: bool) -> None:
    """pytorch/torchtitan#3353: exchange and arithmetic one after the other cost most of the gain."""
    for events in four.run(order_of_events, strategy, sharded):
        buckets = sum(e.startswith("send") for e in events)
        assert buckets >= 2
        assert events.count("compute") >= buckets
        for k in range(buckets - 1):
            between = events[events.index(f"send {k}") : events.index(f"arrived {k}")]
            assert "compute" in between, events


@pytest.mark.parametrize("nodes", [2, 4])
def test_world_mode_counts_the_least_bytes_that_are_possible(four: Fleet, nodes: int) -> None:
    shapes = ((64, 64),) * 16
    layout = tuple(tuple(range(n * 4 // nodes, (n + 1) * 4 // nodes)) for n in range(nodes))

    answers = four.run(train_call, {"strategy": "world"}, {"shapes": shapes, "steps": 1, "nodes": layout})

    least = 2 * 16 * 64 * 64 * (nodes - 1) / nodes
    for node in layout:
        assert sum(answers[r]["bytes"]["cross"] for r in node) == least
    assert all(a["padding"] == 0.0 for a in answers)
    # What is left on the world group is the vote: one word a matrix.
    assert all(a["bytes"]["world"] <= 2 * 4 * (16 + 1) for a in answers)


def test_node_mode_uses_the_fabric_for_the_digest_alone(four: Fleet) -> None:
    answers = four.run(train_call, {"strategy": "node"}, {})

    assert all(a["bytes"]["cross"] == a["bytes"]["world"] == 0 for a in answers)
    assert all(a["bytes"]["node"] > 0 for a in answers)
