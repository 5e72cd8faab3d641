"""One process: a drop-in for torch.optim.Muon, with its mistakes left out."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from kinemill.errors import CorruptError, KinemillError, StateError, UnsupportedError, UsageError
from kinemill.training import Muon
from kinemill.training.muon.newton_schulz import orthogonalize
from kinemill.training.muon.state import from_torch

SHAPES = [(1, 7), (64, 24), (24, 64), (48, 48), (48, 48), (7, 1)]


@pytest.fixture(autouse=True)
def _one_thread() -> Any:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def params(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    seed = torch.Generator().manual_seed(1)
    return [nn.Parameter(torch.randn(s, generator=seed).to(dtype)) for s in SHAPES]


def grads(ps: list[nn.Parameter], step: int) -> None:
    seed = torch.Generator().manual_seed(step)
    for i, p in enumerate(ps):
        g = torch.randn(p.shape, generator=seed).to(p.dtype)
        p.grad = None if (i + step) % 5 == 0 else g


def run(optimizer: torch.optim.Optimizer, ps: list[nn.Parameter], steps: int = 4, start: int = 0) -> None:
    for step in range(start, start + steps):
        grads(ps, step)
        optimizer.step()


def equal(a: list[nn.Parameter], b: list[nn.Parameter]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"lr": torch.tensor(0.02)},
        {"adjust_lr_fn": "match_rms_adamw"},
        {"adjust_lr_fn": "original", "weight_decay": 0.0},
        {"momentum": 0.0, "ns_steps": 3},
        {"ns_coefficients": (2.0, -1.5, 0.5)},
    ],
)
def test_the_bits_of_torch(kwargs: dict[str, Any], dtype: torch.dtype) -> None:
    a, b = params(dtype), params(dtype)

    run(torch.optim.Muon(a, **kwargs), a)
    run(Muon(b, **kwargs), b)

    assert equal(a, b)


def test_without_nesterov_in_bf16_the_momentum_is_not_normalised() -> None:
    """torch 2.13 divides the buffer itself by its norm (pytorch/pytorch#194664)."""
    p = nn.Parameter(torch.zeros(16, 16, dtype=torch.bfloat16))
    gradient = torch.randn(16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    optimizer = Muon([p], nesterov=False)

    p.grad = gradient.clone()
    optimizer.step()

    expected = torch.zeros_like(gradient).lerp(gradient, 1 - 0.95)
    assert torch.equal(optimizer.state[p]["momentum_buffer"], expected)
    assert torch.equal(p.grad, gradient)


def test_the_rest_is_stepped_by_torchs_adamw() -> None:
    a, b = params(), params()
    theirs = torch.optim.AdamW(a, lr=2e-3, betas=(0.8, 0.9), weight_decay=0.2)
    ours = Muon([{"params": b, "use_muon": False}], adamw={"lr": 2e-3, "betas": (0.8, 0.9), "weight_decay": 0.2})

    run(theirs, a)
    run(ours, b)

    assert equal(a, b)


def test_a_convolution_is_stepped_as_rows_of_its_first_dimension() -> None:
    kernel = nn.Parameter(torch.randn(8, 3, 2, 2, generator=torch.Generator().manual_seed(2)))
    flat = nn.Parameter(kernel.detach().reshape(8, 12).clone())
    ours = Muon([{"params": [kernel], "flatten": True}])
    theirs = torch.optim.Muon([flat])

    kernel.grad = torch.ones_like(kernel).cumsum(0)
    flat.grad = kernel.grad.reshape(8, 12).clone()
    ours.step()
    theirs.step()

    assert torch.equal(kernel.reshape(8, 12), flat)


def test_a_closure_is_evaluated_with_gradients_and_a_scheduler_moves_both_sides() -> None:
    p, q = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4))
    optimizer = Muon([{"params": [p]}, {"params": [q], "use_muon": False}])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda _: 0.5)

    def closure() -> float:
        optimizer.zero_grad()
        loss = (p.sum() + q.sum()) ** 2
        loss.backward()
        return float(loss.detach())

    assert optimizer.step(closure) == 400.0
    scheduler.step()
    assert [g["lr"] for g in optimizer.param_groups] == [5e-4, 5e-4]


def test_another_backend_takes_the_place_of_newton_schulz() -> None:
    seen: list[tuple[int, ...]] = []

    def backend(batch: Tensor, coefficients: Any, eps: float) -> Tensor:
        seen.append(tuple(batch.shape))
        return orthogonalize(batch, coefficients, eps)

    a, b = params(), params()
    run(Muon(a, ns_backend=backend), a)
    run(Muon(b), b)

    assert equal(a, b)
    assert (2, 48, 48) in seen


def test_polar_express_steps_and_differs() -> None:
    a, b = params(), params()
    run(Muon(a, ns_coefficients="polar_express"), a)
    run(Muon(b), b)

    assert not equal(a, b)
    assert all(bool(p.isfinite().all()) for p in a)


# ---- state


def test_resume_gives_the_bits_of_the_uninterrupted_run() -> None:
    a, b = params(), params()
    whole = Muon(a)
    run(whole, a, 3)
    saved = copy.deepcopy(whole.state_dict())
    with torch.no_grad():
        for x, y in zip(a, b, strict=True):
            y.copy_(x)
    resumed = Muon(b)
    resumed.load_state_dict(saved)

    run(whole, a, 3, start=3)
    run(resumed, b, 3, start=3)

    assert equal(a, b)


def test_state_is_keyed_by_name() -> None:
    ps = params()
    optimizer = Muon([(f"layer.{i}.weight", p) for i, p in enumerate(ps)])
    run(optimizer, ps, 1)

    assert set(optimizer.state_dict()["state"]) == {f"layer.{i}.weight" for i in range(len(ps))}


def test_torchs_own_state_loads() -> None:
    a, b = params(), params()
    q, r = nn.Parameter(torch.ones(5)), nn.Parameter(torch.ones(5))
    muon, adamw = torch.optim.Muon(a), torch.optim.AdamW([q])
    run(muon, a, 3)
    q.grad = torch.ones(5)
    adamw.step()
    with torch.no_grad():
        for x, y in zip([*a, q], [*b, r], strict=True):
            y.copy_(x)
    ours = Muon([{"params": b}, {"params": [r], "use_muon": False}])

    ours.load_state_dict(from_torch(muon.state_dict(), adamw.state_dict()))
    run(muon, a, 2, start=3)
    adamw.step()
    r.grad = torch.ones(5)
    run(ours, b, 1, start=3)
    r.grad = None
    run(ours, b, 1, start=4)

    assert equal(a, b)
    assert torch.equal(q, r)


def test_momentum_of_another_dtype_is_cast_not_dropped() -> None:
    """deepspeedai/DeepSpeed#7746: an fp32 buffer met a bf16 gradient on resume."""
    a, b = params(), params(torch.bfloat16)
    source = Muon(a)
    run(source, a, 2)
    target = Muon(b)

    target.load_state_dict(source.state_dict())
    run(target, b, 1, start=2)

    buffer = target.state[b[1]]["momentum_buffer"]
    assert buffer.dtype == torch.bfloat16
    assert bool(buffer.any())


def test_a_damaged_state_is_caught_by_its_digest() -> None:
    ps = params()
    optimizer = Muon(ps)
    run(optimizer, ps, 2)
    saved = copy.deepcopy(optimizer.state_dict())
    saved["state"]["param_1"]["momentum_buffer"][3, 3] += 1

    with pytest.raises(CorruptError, match="digest"):
        Muon(params()).load_state_dict(saved)


@pytest.mark.parametrize("damage", ["missing", "shape", "name", "groups", "nothing"])
def test_a_state_that_does_not_fit_is_refused(damage: str) -> None:
    optimizer = Muon(params())
    saved = copy.deepcopy(optimizer.state_dict())
    if damage == "missing":
        del saved["state"]["param_2"]
    elif damage == "shape":
        saved["state"]["param_2"]["momentum_buffer"] = torch.zeros(2, 2)
    elif damage == "name":
        saved["param_groups"][0]["params"][0] = "other"
    elif damage == "groups":
        saved["param_groups"] *= 2
    else:
        saved = {}

    with pytest.raises(StateError, match="muon"):
        optimizer.load_state_dict(saved)


def test_a_decision_that_changes_on_resume_is_logged_and_kept(caplog: pytest.LogCaptureFixture) -> None:
    saved = Muon(params()).state_dict()
    saved["kinemill"]["decision"] |= {"strategy": "world", "nodes": 4, "reason": "4 nodes <= node_threshold 8"}
    resumed = Muon(params())

    resumed.load_state_dict(saved)

    assert "world on 4 nodes (4 nodes <= node_threshold 8) -> node on 1 nodes" in caplog.text
    assert "strategy changes on resume" in resumed.decision.reason
    assert resumed.earlier_decisions[0]["strategy"] == "world"


# ---- bad input


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(4, 4, dtype=torch.complex64), "complex"),
        (torch.zeros(4), "use_muon=False"),
        (torch.zeros(2, 4, 4), "3 dimensions"),
        (torch.zeros(2, 4, 4, 4), "4 dimensions"),
        (torch.zeros(0, 4), "empty"),
    ],
)
def test_parameters_that_muon_cannot_step_are_refused_with_the_reason(tensor: Tensor, words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        Muon([nn.Parameter(tensor)])


def test_sparse_gradients_are_refused_and_nothing_has_moved() -> None:
    p, q = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4))
    optimizer = Muon([p, q])
    p.grad = torch.ones(4, 4)
    q.grad = torch.ones(4, 4).to_sparse()

    with pytest.raises(UnsupportedError, match="sparse"):
        optimizer.step()
    assert bool((p == 1).all())


def test_a_frozen_parameter_stays_and_has_no_state() -> None:
    p, q = nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, 4), requires_grad=False)
    optimizer = Muon([("p", p), ("q", q)])
    p.grad = torch.ones(4, 4)

    optimizer.step()

    assert bool((q == 1).all())
    assert set(optimizer.state_dict()["state"]) == {"p"}


def test_a_parameter_that_thaws_is_stepped() -> None:
    p = nn.Parameter(torch.ones(4, 4), requires_grad=False)
    optimizer = Muon([p])
    p.requires_grad_()
    p.grad = torch.ones(4, 4)

    optimizer.step()

    assert not bool((p == 1).any())
    assert optimizer.state_dict()["state"]


@pytest.mark.parametrize(
    "kwargs",
    [
        {"lr": -1.0},
        {"lr": torch.ones(2)},
        {"momentum": -0.1},
        {"weight_decay": float("nan")},
        {"eps": float("inf")},
        {"adjust_lr_fn": "other"},
        {"ns_steps": 0},
        {"ns_coefficients": "other"},
        {"strategy": "pod"},
        {"node_threshold": -1},
        {"bucket_mb": 0},
        {"check_every": -1},
        {"adamw": {"lrr": 1.0}},
    ],
)
def test_impossible_arguments_are_refused(kwargs: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Muon([nn.Parameter(torch.ones(2, 2))], **kwargs)


def test_two_parameters_of_one_name_and_late_groups_are_refused() -> None:
    p, q = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    with pytest.raises(UsageError, match="two parameters are named a"):
        Muon([("a", p), ("module.a", q)])
    with pytest.raises(StateError, match="cannot be added later"):
        Muon([p]).add_param_group({"params": [q]})


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, KeyboardInterrupt])
def test_after_a_step_that_broke_off_it_refuses_to_go_on(error: type[BaseException]) -> None:
    def backend(batch: torch.Tensor, *_: Any) -> torch.Tensor:
        if batch.shape[-1] == 3:
            raise error("no room")
        return batch

    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(3, 3))
    optimizer = Muon([a, b], ns_backend=backend)
    for p in (a, b):
        p.grad = torch.ones_like(p)
    with pytest.raises(error):
        optimizer.step()

    with pytest.raises(StateError, match=f"{error.__name__}: no room. Restart from the last checkpoint"):
        optimizer.step()
    with pytest.raises(StateError, match="half stepped"):
        optimizer.state_dict()


def test_after_close_it_says_so() -> None:
    optimizer = Muon([nn.Parameter(torch.ones(2, 2))])
    optimizer.close()

    with pytest.raises(KinemillError, match="closed"):
        optimizer.step()


def test_counters_have_the_names_of_the_contract() -> None:
    from kinemill.contracts import METRICS

    ps = params()
    optimizer = Muon(ps)
    run(optimizer, ps, 1)

    rows = optimizer.counters.as_dict()
    assert {name for name, _ in rows} <= set(METRICS)
    assert rows["kinemill_optimizer_seconds", "newton_schulz"] > 0


def test_hooks_on_state_dicts_run_as_in_torch() -> None:
    optimizer, seen = Muon(params()), []
    optimizer.register_state_dict_pre_hook(lambda _: seen.append("before save"))
    optimizer.register_state_dict_post_hook(lambda _, found: {**found, "mine": 1})
    optimizer.register_load_state_dict_pre_hook(lambda _, found: seen.append(str(found["mine"])))
    optimizer.register_load_state_dict_post_hook(lambda _: seen.append("after load"))

    optimizer.load_state_dict(optimizer.state_dict())

    assert seen == ["before save", "1", "after load"]


def test_a_state_of_amsgrad_is_refused() -> None:
    q = nn.Parameter(torch.ones(5))
    theirs = torch.optim.AdamW([q], amsgrad=True)
    q.grad = torch.ones(5)
    theirs.step()

    with pytest.raises(StateError, match="amsgrad"):
        Muon([{"params": [q], "use_muon": False}]).load_state_dict(theirs.state_dict())


def test_torchs_own_helpers_carry_the_state_too() -> None:
    """They rename keys from names to numbers, which load as positions."""
    from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

    model = nn.Sequential(nn.Linear(4, 8, bias=False), nn.Linear(8, 3, bias=False))
    optimizer = Muon(model.named_parameters())
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    found = copy.deepcopy(get_optimizer_state_dict(model, optimizer))
    digest = optimizer.state_digest()
    for state in optimizer.state.values():
        state["momentum_buffer"].zero_()

    set_optimizer_state_dict(model, optimizer, found)

    assert optimizer.state_digest() == digest
