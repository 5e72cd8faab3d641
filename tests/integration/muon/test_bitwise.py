"""Every way to share the work gives the bits of torch.optim.Muon in one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from support.muon import Fleet
from support.muon_work import SHAPES, STEPS, bits, make_params, set_grads, train_call


def reference(
    mode: str = "all", shapes: Any = SHAPES, dtype: torch.dtype = torch.float32, **kwargs: Any
) -> list[bytes]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        params = make_params(shapes, dtype)
        optimizer = torch.optim.Muon(params, **kwargs)
        for step in range(STEPS):
            set_grads(params, step, mode)
            optimizer.step()
        return bits(params)
    finally:
        torch.set_num_threads(threads)


TABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "replicated": ({"strategy": "replicated"}, {}),
    "world": ({"strategy": "world"}, {}),
    "node": ({"strategy": "node"}, {}),
    "node, match_rms_adamw": ({"strategy": "node", "adjust_lr_fn": "match_rms_adamw"}, {}),
    "world, no Nesterov": ({"strategy": "world", "nesterov": False}, {}),
    "node, small buckets": ({"strategy": "node", "bucket_mb": 0.01}, {}),
    "world, small buckets": ({"strategy": "world", "bucket_mb": 0.01}, {}),
    "world, one matrix on four ranks": ({"strategy": "world"}, {"shapes": ((64, 96),)}),
    "node, 3 of 13 gradients missing": ({"strategy": "node"}, {"mode": "few"}),
    "world, 12 of 13 gradients missing": ({"strategy": "world"}, {"mode": "most"}),
    "one node of four": ({"strategy": "auto"}, {"nodes": ((0, 1, 2, 3),)}),
    "four nodes of one, world": ({"strategy": "world"}, {"nodes": ((0,), (1,), (2,), (3,))}),
    "interleaved ranks, world": ({"strategy": "world"}, {"nodes": ((0, 3), (1, 2))}),
    "custom coefficients": ({"strategy": "node", "ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 7}, {}),
    "HSDP, node": ({"strategy": "node"}, {"sharded": True}),
    "HSDP, node, small buckets": ({"strategy": "node", "bucket_mb": 0.01}, {"sharded": True}),
    "HSDP, world": ({"strategy": "world"}, {"sharded": True}),
    "HSDP, world, small buckets, missing gradients": (
        {"strategy": "world", "bucket_mb": 0.01},
        {"sharded": True, "mode": "few"},
    ),
}


@pytest.mark.parametrize("case", TABLE)
def test_two_nodes_of_two_give_the_bits_of_one_process(four: Fleet, case: str) -> None:
    kwargs, options = TABLE[case]
    plain = {k: v for k, v in kwargs.items() if k not in ("strategy", "bucket_mb")}
    kept = {k: v for k, v in options.items() if k in ("mode", "shapes", "dtype")}

    expected = reference(**kept, **plain)
    answers = four.run(train_call, kwargs, options)

    for rank, answer in enumerate(answers):
        wrong = [i for i, (a, b) in enumerate(zip(answer["bits"], expected, strict=True)) if a != b]
        assert not wrong, f"rank {rank}: matrices {wrong} differ"
        assert answer["digests"] == STEPS
    if answers[0]["strategy"] != "world":
        assert all(a["bytes"]["cross"] == a["bytes"]["world"] == 0 for a in answers), "node mode used the fabric"


@pytest.mark.parametrize("strategy", ["node", "world", "replicated"])
def test_nodes_of_three_and_two_give_the_bits_of_one_process(five: Fleet, strategy: str) -> None:
    answers = five.run(train_call, {"strategy": strategy}, {})

    assert all(a["bits"] == reference() for a in answers)
    assert all(a["nodes"] == ((0, 1, 2), (3, 4)) for a in answers)
    kept = [a["kept"] for a in answers]
    if strategy == "node":
        assert sum(kept[:3]) == sum(kept[3:]) == len(SHAPES)
    elif strategy == "world":
        assert sum(kept) == len(SHAPES)


def test_momentum_stands_on_its_owner_alone(four: Fleet) -> None:
    node = [a["kept"] for a in four.run(train_call, {"strategy": "node"}, {})]
    world = [a["kept"] for a in four.run(train_call, {"strategy": "world"}, {})]

    assert sum(node[:2]) == sum(node[2:]) == 13
    assert sum(world) == 13
    assert max(world) < max(node)


@pytest.mark.parametrize("strategy", ["node", "world"])
def test_bf16_parameters_stay_within_one_ulp_and_equal_on_all_ranks(four: Fleet, strategy: str) -> None:
    # torch adds a transposed view of a tall update, we add a contiguous copy: on bf16 parameters that rounds apart.
    dtype = torch.bfloat16
    answers = four.run(train_call, {"strategy": strategy}, {"dtype": dtype})

    assert all(a["bits"] == answers[0]["bits"] for a in answers)
    for ours, theirs in zip(answers[0]["bits"], reference(dtype=dtype), strict=True):
        a, b = (torch.frombuffer(bytearray(x), dtype=dtype).float() for x in (ours, theirs))
        assert torch.allclose(a, b, rtol=2**-7, atol=2**-8)
