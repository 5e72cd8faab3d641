"""Which parameter goes where, said aloud; no guess where a guess could be wrong."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from torch import nn

from kinemill.errors import UsageError
from kinemill.training import Muon, split_params


class Policy(nn.Module):
    """Embedding, stem, block, norm, head: what a policy has."""

    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(50, 16)
        self.stem = nn.Conv2d(3, 16, 4)
        self.up = nn.Linear(16, 32)
        self.down = nn.Linear(32, 16, bias=False)
        self.norm = nn.LayerNorm(16)
        self.head = nn.Linear(16, 50, bias=False)


def sides(groups: list[dict[str, Any]]) -> dict[str, str]:
    return {n: ("muon" if g["use_muon"] else "adamw") for g in groups for n, _ in g["params"]}


def test_hidden_matrices_go_to_muon_the_rest_to_adamw_and_the_table_says_so() -> None:
    out = io.StringIO()

    found = sides(split_params(Policy(), head="head", out=out))

    assert {n for n, s in found.items() if s == "muon"} == {"up.weight", "down.weight"}
    assert found["token.weight"] == found["stem.weight"] == found["norm.weight"] == found["head.weight"] == "adamw"
    assert "Muon: 2 tensors, 1,024 parameters" in out.getvalue()
    assert "named by head=" in out.getvalue()


def test_a_head_that_nobody_named_is_refused() -> None:
    with pytest.raises(UsageError, match=r"head\.weight .* looks like a head: say head="):
        split_params(Policy(), out=None)


def test_a_tied_head_is_refused_until_it_is_named_and_then_stepped_once() -> None:
    model = Policy()
    model.head.weight = model.token.weight

    with pytest.raises(UsageError, match=r"token\.weight and head\.weight are one tensor .* say head='head\.weight'"):
        split_params(model, out=None)

    found = sides(split_params(model, head="head", out=None))
    assert found["token.weight"] == "adamw"
    assert "head.weight" not in found


def test_convolutions_go_to_muon_only_when_asked() -> None:
    groups = split_params(Policy(), head="head", flatten=True, out=None)

    assert sides(groups)["stem.weight"] == "muon"
    assert [g.get("flatten", False) for g in groups] == [False, True, False]


def test_a_stack_of_matrices_is_refused_until_it_is_named() -> None:
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4, 8, 8))

    with pytest.raises(UsageError, match="3 dimensions"):
        split_params(Experts(), out=None)
    assert sides(split_params(Experts(), adamw="weight", out=None)) == {"weight": "adamw"}


def test_frozen_parameters_are_left_out_and_listed() -> None:
    model, out = Policy(), io.StringIO()
    model.up.weight.requires_grad_(requires_grad=False)

    assert "up.weight" not in sides(split_params(model, head="head", out=out))
    assert "left alone: 1 tensors" in out.getvalue()


@pytest.mark.parametrize(
    "kwargs", [{"head": ["head", "haed"]}, {"head": "head", "muon": "head"}, {"head": "head", "muon": "up.bias"}]
)
def test_names_that_fit_nothing_or_two_sides_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="split_params"):
        split_params(Policy(), out=None, **kwargs)


def test_names_lose_their_wrappers_and_the_groups_make_an_optimizer() -> None:
    wrapped = nn.ModuleDict({"module": Policy()})

    optimizer = Muon(split_params(wrapped, head="head", out=None), adamw={"lr": 3e-4})

    assert "up.weight" in optimizer.names.values()
    assert [g["lr"] for g in optimizer.param_groups] == [1e-3, 3e-4]
    assert "momentum" not in optimizer.param_groups[1]
