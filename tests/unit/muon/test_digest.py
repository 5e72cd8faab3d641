"""The digest of bits: any flip shows, parts add up."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kinemill.training.muon.digest import MASK, signed, tensor_digest
from kinemill.training.muon.drift import describe
from kinemill.training.muon.topology import Topology


@given(st.integers(1, 600), st.integers(0, 10**6), st.integers(0, 31))
@settings(max_examples=50, deadline=None)
def test_one_flipped_bit_shows(numel: int, where: int, bit: int) -> None:
    tensor = torch.arange(numel, dtype=torch.float32)
    other = tensor.clone()
    other.view(torch.int32)[where % numel] ^= signed(1 << bit) if bit < 31 else -(2**31)

    assert tensor_digest(tensor, "w") != tensor_digest(other, "w")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_parts_add_up_to_the_whole(dtype: torch.dtype) -> None:
    tensor = torch.randn(700_001, generator=torch.Generator().manual_seed(0)).to(dtype)

    parts = tensor_digest(tensor[:300_000], "w") + tensor_digest(tensor[300_000:], "w", start=300_000)

    assert parts == tensor_digest(tensor, "w")


def test_order_and_names_count() -> None:
    a = torch.tensor([1.0, 2.0])

    assert tensor_digest(a, "w") != tensor_digest(a.flip(0), "w")
    assert tensor_digest(a, "w") != tensor_digest(a, "v")
    assert tensor_digest(torch.empty(0), "w") == 0
    assert signed(MASK) == -1


def test_the_sentence_names_ranks_node_and_parameter() -> None:
    topology = Topology(((0, 1), (2, 3)), ("gpu-a", "gpu-b"))

    text = describe([[1, 2], [1, 2], [1, 2], [1, 9]], ["w", "v"], topology, "parameter")

    assert "parameter v on ranks [3] of node 1 (gpu-b)" in text
    assert "no majority" in describe([[1], [2]], ["w"], Topology(((0,), (1,))), "parameter")
