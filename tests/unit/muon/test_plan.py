"""Who owns what: deterministic, balanced, and cut into buckets without padding where loads are equal."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.training.muon.plan import Matrix, assign, listing, make_plan, ns_flops, plan_hash

SEVEN_B = [shape for _ in range(32) for shape in [(4096, 4096)] * 4 + [(11008, 4096)] * 2 + [(4096, 11008)]]


def matrices(shapes: list[tuple[int, int]]) -> list[Matrix]:
    return [Matrix(i, f"m{i}", r, c, 0) for i, (r, c) in enumerate(shapes)]


def test_flops_of_a_pass_count_two_long_products_and_a_square_one() -> None:
    assert ns_flops(2, 3, steps=1) == 2 * (2 * 3 * 2) + 2 * (2 * 2 * 2) + 2 * (2 * 2 * 3)
    assert ns_flops(3, 2) == ns_flops(2, 3)


@pytest.mark.parametrize("positions", [8, 16, 32])
def test_seven_billion_parameters_balance_without_padding(positions: int) -> None:
    plan = make_plan(matrices(SEVEN_B), positions, 64 << 20)

    assert plan.imbalance <= 0.05
    assert plan.padding == 0.0


shapes = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=30)


@given(shapes, st.integers(1, 9), st.integers(2, 4000))
def test_every_matrix_has_one_owner_and_one_bucket(sizes: list[tuple[int, int]], positions: int, bucket: int) -> None:
    plan = make_plan(matrices(sizes), positions, bucket)

    seen = [(i, p) for b in plan.buckets for p, slot in enumerate(b.slots) for i in slot]
    assert sorted(i for i, _ in seen) == list(range(len(sizes)))
    assert all(plan.owner[i] == p for i, p in seen)
    assert plan == make_plan(matrices(sizes), positions, bucket)
    # Graham's bound for longest-processing-time-first
    heaviest = max(ns_flops(*s) for s in sizes)
    loads = [sum(ns_flops(*sizes[i]) for i in plan.owned(p)) for p in range(positions)]
    least = max(heaviest, sum(loads) / positions)
    assert max(loads) <= 4 / 3 * least + heaviest / 3


def test_frozen_matrices_do_not_spoil_the_balance_of_the_others() -> None:
    ms = [Matrix(i, f"m{i}", 64, 64, 0, trainable=i % 2 == 0) for i in range(8)]

    owner = assign(ms, 4)

    assert sorted(owner[i] for i in range(0, 8, 2)) == [0, 1, 2, 3]


def test_the_hash_sees_order_shape_dtype_and_settings() -> None:
    ms = matrices([(4, 8), (8, 4), (4, 4)])
    lines = listing(ms, [("bias", (4,), "float32")])
    swapped = listing([*ms[1::-1], ms[2]], [("bias", (4,), "float32")])

    marks = {plan_hash(lines, {}), plan_hash(swapped, {}), plan_hash(lines, {"bucket": 1}), plan_hash(lines[:-1], {})}

    assert len(marks) == 4


def test_a_mixed_list_balances_within_five_percent_at_eight() -> None:
    rng = random.Random(3)
    sizes = [(rng.choice((512, 1024, 2048)), rng.choice((512, 1024, 2048, 4096))) for _ in range(200)]

    assert make_plan(matrices(sizes), 8, 64 << 20).imbalance < 0.05
