"""The order of samples: bijective, spread, elastic."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.errors import ConfigError, UsageError
from kinemill.loaders.order import Order, Permutation
from kinemill.loaders.sampler import BatchSampler

ALL = np.arange


@given(size=st.integers(1, 3_000), key=st.integers(-(2**70), 2**70))
def test_a_permutation_is_one(size: int, key: int) -> None:
    out = Permutation(size, key)(ALL(size))
    assert sorted(out.tolist()) == list(range(size))


def test_a_permutation_of_ten_billion_is_evaluated_at_a_point() -> None:
    size = 10**10
    points = np.random.default_rng(0).integers(0, size, 50_000)
    out = Permutation(size, 1, 2)(points)
    assert out.min() >= 0
    assert out.max() < size
    assert len(np.unique(out)) == len(np.unique(points))
    # spread evenly: 100 bins of 500, five sigma is 112
    counts = np.histogram(out, bins=100, range=(0, size))[0]
    assert abs(counts - 500).max() < 130


def test_keys_give_unrelated_orders() -> None:
    a, b = Permutation(10_000, 0, 0)(ALL(10_000)), Permutation(10_000, 0, 1)(ALL(10_000))
    assert (a == b).mean() < 0.002
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.05
    # and neighbours do not stay neighbours
    assert (abs(np.diff(a)) <= 10).mean() < 0.01


def test_the_order_is_pinned() -> None:
    """A change here breaks every run that resumes: bump the state's version with it."""
    order = Order.mix([1000], seed=7)
    assert order.samples(3, ALL(8)).tolist() == PINNED


PINNED = [833, 330, 214, 926, 341, 301, 767, 379]


def test_one_source_gives_every_sample_once_and_epochs_differ() -> None:
    order = Order.mix([500], seed=1)
    first, second = order.samples(0, ALL(500)), order.samples(1, ALL(500))
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(500))
    assert (first != second).mean() > 0.9


def test_a_mixture_keeps_its_shares_exactly_and_goes_round_small_sources() -> None:
    order = Order.mix([1000, 30], [0.75, 0.25], units=400, seed=1)
    assert order.quotas == (300, 100)
    drawn = order.samples(0, ALL(400))
    big, small = drawn[drawn < 1000], drawn[drawn >= 1000] - 1000
    assert (len(big), len(small)) == (300, 100)
    assert len(set(big.tolist())) == 300  # a part of the big one, none twice
    counts = np.bincount(small, minlength=30)
    assert counts.min() >= 3  # 100 from 30: three times round and ten more
    assert counts.max() <= 4
    # another epoch takes another part of the big one
    other = order.samples(1, ALL(400))
    assert set(other[other < 1000].tolist()) != set(big.tolist())
    # and the small one is spread over the epoch, not lumped
    places = np.flatnonzero(drawn >= 1000)
    assert (np.histogram(places, bins=4, range=(0, 400))[0] > 10).all()


def test_units_stay_together() -> None:
    order = Order.mix([50], seed=3, unit=4)
    drawn = order.samples(0, ALL(200)).reshape(50, 4)
    assert (drawn % 4 == ALL(4)).all()
    assert (drawn // 4 == drawn[:, :1] // 4).all()
    assert sorted(drawn.ravel().tolist()) == list(range(200))


def test_without_shuffle_the_order_is_natural() -> None:
    assert Order.mix([5, 3], shuffle=False).samples(9, ALL(8)).tolist() == list(range(8))


@pytest.mark.parametrize(
    ("lengths", "weights"), [([5, 5], [1.0]), ([5, 5], [-1.0, 2.0]), ([5, 5], [0.0, 0.0]), ([5, 0], [0.5, 0.5])]
)
def test_impossible_mixtures_are_refused(lengths: list[int], weights: list[float]) -> None:
    with pytest.raises(UsageError):
        Order.mix(lengths, weights)


# ---- ranks, tails, resume


def _drain(order: Order, world: int, batch: int, state=None, steps: int | None = None, tail: str = "drop"):
    """All ranks' samples in order of global step, and the state after `steps`."""
    out: list[int] = []
    states = []
    lengths = set()
    taken = []
    for rank in range(world):
        sampler = BatchSampler(order, batch_size=batch, rank=rank, world=world, tail=tail)
        if state is not None:
            sampler.load_state_dict(state)
        batches = list(sampler)[:steps]
        lengths.add(len(batches))
        taken.append(batches)
        states.append(sampler.state_dict(len(batches)))
    assert len(lengths) == 1  # equal steps on every rank
    for step in zip(*taken, strict=True):
        for one in step:
            out += one
    assert all(s == states[0] for s in states)
    return out, states[0]


@settings(max_examples=40, deadline=None)
@given(n=st.integers(1, 400), world=st.integers(1, 9), batch=st.integers(1, 7), tail=st.sampled_from(["drop", "wrap"]))
def test_every_rank_does_the_same_steps_and_nothing_comes_twice(n: int, world: int, batch: int, tail: str) -> None:
    drawn, _ = _drain(Order.mix([n]), world, batch, tail=tail)
    if tail == "drop":
        assert len(drawn) == len(set(drawn)) == n // (world * batch) * world * batch
    else:
        assert set(drawn) == set(range(n))
        assert len(drawn) - n < world * batch


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_resume_at_another_world_and_batch_size_loses_and_repeats_nothing(data: st.DataObject) -> None:
    n = data.draw(st.integers(50, 400))
    order = Order.mix([n], seed=data.draw(st.integers(0, 5)))
    shapes = [(data.draw(st.integers(1, 6)), data.draw(st.integers(1, 5))) for _ in range(3)]
    expected = order.samples(0, ALL(n)).tolist()
    drawn: list[int] = []
    state = None
    for world, batch in shapes:
        if state is not None and n - state["position"] < world * batch:
            continue  # no step of this size is left: a run would begin the next epoch
        part, state = _drain(order, world, batch, state, steps=data.draw(st.integers(0, 6)))
        drawn += part
    part = _drain(order, 1, 1, state)[0] if state is None or state["position"] < n else []
    assert drawn + part == expected


def test_a_state_of_other_data_is_refused_and_the_difference_named() -> None:
    state = BatchSampler(Order.mix([100], seed=1), batch_size=2, identity="a").state_dict()
    with pytest.raises(ConfigError, match="seed is 1 in the checkpoint and 2 here"):
        BatchSampler(Order.mix([100], seed=2), batch_size=2, identity="a").load_state_dict(state)
    with pytest.raises(ConfigError, match="length is 100"):
        BatchSampler(Order.mix([101], seed=1), batch_size=2, identity="a").load_state_dict(state)
    with pytest.raises(ConfigError, match="identity is 'a'"):
        BatchSampler(Order.mix([100], seed=1), batch_size=2, identity="b").load_state_dict(state)


def test_a_finished_epoch_goes_on_with_the_next() -> None:
    sampler = BatchSampler(Order.mix([10]), batch_size=5)
    sampler.load_state_dict(sampler.state_dict(2))
    assert sum(map(len, sampler)) == 10
    assert sampler.epoch == 1


def test_fewer_samples_than_one_step_is_an_empty_epoch_not_a_hang() -> None:
    assert list(BatchSampler(Order.mix([7]), batch_size=2, world=4)) == []
    assert list(BatchSampler(Order.mix([0]), batch_size=2, tail="wrap")) == []


def test_look_ahead_names_the_same_workers_next_batch() -> None:
    sampler = BatchSampler(Order.mix([64]), batch_size=4, ahead=2)
    batches = list(sampler)
    assert [list(b.ahead) for b in batches[:-2]] == [list(b) for b in batches[2:]]
    assert batches[-1].ahead == ()


@pytest.mark.parametrize("bad", [{"batch_size": 0}, {"rank": 2, "world": 2}, {"world": 0}, {"tail": "pad"}])
def test_impossible_samplers_are_refused(bad: dict) -> None:
    with pytest.raises(UsageError):
        BatchSampler(Order.mix([10]), **{"batch_size": 1, **bad})
