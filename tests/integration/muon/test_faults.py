"""What goes wrong on one rank is said on every rank; nobody waits for ever."""

from __future__ import annotations

import pytest

from support.muon import Failed, Fleet, fleet
from support.muon_work import (
    broken_groups,
    ddp,
    die_in_a_step,
    drift_by_unreduced_gradients,
    flip_a_bit,
    fsdp,
    grads_differ,
    order_differs,
    settings_differ,
    sparse_on_one,
    step_again,
    wrong_sharding,
)


def texts(found: list[object], kind: str) -> list[str]:
    assert all(isinstance(f, Failed) and f.kind == kind for f in found), found
    return [f.text for f in found if isinstance(f, Failed)]


def test_another_order_of_parameters_is_named_on_the_rank_that_has_it(four: Fleet) -> None:
    found = texts(four.outcomes(order_differs), "UsageError")

    assert all("ranks [2] were given other arguments than rank 0" in t for t in found)
    assert "parameter 0 is 'muon 0 block.12.weight 7x1 float32'" in found[2]
    assert "'muon 0 block.0.weight 1x7 float32'" in found[2]


def test_ranks_that_would_decide_differently_follow_the_lowest(four: Fleet) -> None:
    assert four.run(settings_differ) == ["world"] * 4


def test_a_gradient_that_only_the_owner_has_is_enough(four: Fleet) -> None:
    """KellerJordan/Muon#36, facebookresearch/optimizers#149: no rank skips a collective by itself."""
    all_there = four.run(grads_differ, [])
    found = four.outcomes(grads_differ, [0, 2])  # matrix 1 belongs to position 1: ranks 1 and 3

    assert all(f == all_there[0] for f in found)


def test_a_gradient_that_the_owner_lacks_was_not_reduced(four: Fleet) -> None:
    """deepspeedai/DeepSpeed#7807: Newton-Schulz must not see what is only partly reduced."""
    found = texts(four.outcomes(grads_differ, [1, 3]), "UsageError")

    assert all("block.1.weight" in t and "not reduced" in t for t in found)


def test_a_sparse_gradient_on_one_rank_stops_all(four: Fleet) -> None:
    found = four.outcomes(sparse_on_one)

    assert [f.kind for f in found] == ["UsageError", "UnsupportedError", "UsageError", "UsageError"]
    assert "another rank refused" in found[0].text


@pytest.mark.parametrize(("rank", "sharded"), [(3, False), (0, False), (2, True)])
def test_one_flipped_bit_is_found_and_located(four: Fleet, rank: int, sharded: bool) -> None:
    found = texts(four.outcomes(flip_a_bit, rank, sharded), "CorruptError")

    assert len(set(found)) == 1
    assert "block.3.weight" in found[0]
    odd = [r for r in range(4) if r // 2 == rank // 2] if sharded else [rank]
    if not sharded:
        assert f"on ranks {odd} of node {rank // 2} (node-{rank // 2})" in found[0]


def test_gradients_that_nodes_never_reduced_show_as_drift(four: Fleet) -> None:
    found = texts(four.outcomes(drift_by_unreduced_gradients), "CorruptError")

    assert "drifted apart" in found[0]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("over nodes", "this node's ranks are [0, 1]. Use HSDP"),
        ("across", "this node's ranks are [0, 1]. Use HSDP"),
        ("columns", "whole rows"),
        ("two dimensions", "whole rows"),
        ("mixed", "block.1.weight is whole on each rank while others are sharded"),
        ("replicated", "needs whole matrices"),
    ],
)
def test_other_shardings_are_refused_with_their_reason(four: Fleet, how: str, words: str) -> None:
    found = four.outcomes(wrong_sharding, how)

    assert all(isinstance(f, Failed) and f.kind in ("UnsupportedError", "UsageError") for f in found), found
    assert words in found[0].text


@pytest.mark.parametrize("strategy", ["node", "world"])
def test_fsdp2_on_an_hsdp_mesh_gives_the_bits_of_one_process(four: Fleet, strategy: str) -> None:
    assert all(four.run(fsdp, strategy))


@pytest.mark.parametrize("strategy", ["node", "world"])
def test_ddp_with_a_starved_layer_gives_the_bits_of_one_process(four: Fleet, strategy: str) -> None:
    """microsoft/dion: parameters that get no gradient in some steps."""
    assert all(four.run(ddp, strategy))


def test_two_optimizers_share_groups_and_one_may_close(four: Fleet) -> None:
    four.run(step_again)
    assert all(four.run(broken_groups))


def test_a_rank_that_dies_inside_a_step_is_reported_by_the_others() -> None:
    with fleet(2, 1) as small:
        found = small.outcomes(die_in_a_step, 1, "world")

    assert found[1].kind == "died"
    survivors = [f for i, f in enumerate(found) if i != 1]
    assert all(f.kind == "UnavailableError" for f in survivors), survivors
    assert all("restart from the last checkpoint" in f.text for f in survivors)
