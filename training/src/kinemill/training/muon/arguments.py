"""What may be passed to `Muon`, and how the ranks settle that they were passed the same."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from kinemill.errors import KinemillError, UnsupportedError, UsageError
from kinemill.settings import load_settings
from kinemill.training.muon import coefficients
from kinemill.training.muon.decide import Decision
from kinemill.training.muon.plan import Matrix
from kinemill.training.muon.site import MuonSettings
from kinemill.training.muon.topology import Rendezvous

__all__ = [
    "MUON_ONLY",
    "adamw_defaults",
    "adjusted_lr",
    "check_grads",
    "check_group",
    "check_muon",
    "clean_name",
    "load_site",
    "names",
    "settle",
    "triples",
]

MUON_ONLY = ("momentum", "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")
_ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def load_site() -> tuple[MuonSettings, str]:
    """The inventory's facts on this machine, and where the threshold came from."""
    loaded = load_settings(MuonSettings, plane="muon")
    return loaded.value, loaded.origins.get("node_threshold", "the inventory")


def clean_name(name: str) -> str:
    """A parameter's name without the parts that DDP, torch.compile and checkpoint wrappers add."""
    return ".".join(part for part in name.split(".") if part not in _WRAPPERS)


def adamw_defaults(given: dict[str, Any] | None) -> dict[str, Any]:
    """torch.optim.AdamW's defaults with what was given."""
    unknown = sorted(set(given or {}) - set(_ADAMW))
    if unknown:
        raise UsageError(f"adamw: unknown {', '.join(unknown)}; known: {', '.join(_ADAMW)}")
    return {**_ADAMW, **(given or {})}


def check_muon(group: dict[str, Any]) -> None:
    """Refuse hyperparameters that cannot be.

    Raises:
        UsageError: Names the argument.
    """
    lr = group["lr"]
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise UsageError("lr: a tensor must have one element")
    for key in ("lr", "momentum", "weight_decay", "eps"):
        if not 0.0 <= float(group[key]) < math.inf:
            raise UsageError(f"{key} {group[key]}: must be 0 or more, and finite")
    if group["adjust_lr_fn"] not in (None, "original", "match_rms_adamw"):
        raise UsageError(f"adjust_lr_fn '{group['adjust_lr_fn']}': None, 'original' or 'match_rms_adamw'")
    triples(group)


def triples(group: dict[str, Any]) -> tuple[coefficients.Triple, ...]:
    """The group's coefficients, one triple an iteration."""
    try:
        return coefficients.resolve(group["ns_coefficients"], group["ns_steps"])
    except (TypeError, ValueError) as exc:
        raise UsageError(str(exc)) from exc


def check_group(group: dict[str, Any], number: int) -> None:
    """Refuse a group whose parameters its algorithm cannot step."""
    known = [clean_name(n) for n in group.get("param_names", [])] or [f"#{i}" for i in range(len(group["params"]))]
    for name, p in zip(known, group["params"], strict=True):
        where = f"group {number}, parameter {name} of shape {tuple(p.shape)}"
        if p.is_complex():
            raise UnsupportedError(f"{where}: complex parameters are not supported")
        if not p.is_floating_point() or p.layout is not torch.strided:
            raise UnsupportedError(f"{where}: {p.dtype} {p.layout} cannot be stepped")
        if not group["use_muon"]:
            continue
        if p.ndim < 2:
            raise UnsupportedError(
                f"{where}: Muon steps matrices. Put it into a group with use_muon=False (split_params does)"
            )
        if p.ndim > 2 and not group.get("flatten"):
            raise UnsupportedError(
                f"{where}: {p.ndim} dimensions. For convolution kernels set flatten=True in the group, which takes all "
                "dimensions after the first as columns; stacked experts are many matrices: make them parameters of "
                "their own; else use_muon=False"
            )
        if p.numel() == 0:
            raise UnsupportedError(f"{where}: it is empty")
    if group["use_muon"]:
        check_muon(group)
    else:
        if "betas" not in group or not all(0.0 <= b < 1.0 for b in group["betas"]):
            raise UsageError(f"group {number}: betas {group.get('betas')}: two numbers in [0, 1)")
        if not float(group["lr"]) >= 0.0 or not group["eps"] >= 0.0 or not group["weight_decay"] >= 0.0:
            raise UsageError(f"group {number}: lr, eps and weight_decay must be 0 or more")


def names(groups: Sequence[dict[str, Any]]) -> dict[Tensor, str]:
    """Parameter -> clean name; numbered where the caller gave none.

    Raises:
        UsageError: Two parameters share a name.
    """
    found: dict[Tensor, str] = {}
    for group in groups:
        for i, p in enumerate(group["params"]):
            found[p] = clean_name(group["param_names"][i]) if "param_names" in group else f"param_{len(found)}"
    seen: set[str] = set()
    for name in found.values():
        if name in seen:
            raise UsageError(f"two parameters are named {name}: state dicts are keyed by name")
        seen.add(name)
    if not found:
        raise UsageError("muon: no parameters")
    return found


def adjusted_lr(lr: float, how: str | None, m: Matrix) -> float:
    """Learning rate of one matrix; sources in `Muon`'s docstring."""
    if how == "match_rms_adamw":
        return lr * (0.2 * math.sqrt(max(m.rows, m.cols)))
    return lr * math.sqrt(max(1, m.rows / m.cols))


def check_grads(params: Sequence[Tensor], names: Sequence[str]) -> KinemillError | None:
    """What is wrong with the gradients, if anything."""
    for p, what in zip(params, names, strict=True):
        if p.grad is None:
            continue
        if p.grad.layout is not torch.strided:
            return UnsupportedError(
                f"muon: the gradient of {what} is {p.grad.layout}: sparse gradients are not supported"
            )
        if isinstance(p.grad, DTensor) and any(x.is_partial() for x in p.grad.placements):
            return UsageError(f"muon: the gradient of {what} holds partial sums; reduce it before step()")
        if isinstance(p, DTensor) != isinstance(p.grad, DTensor) or (
            isinstance(p, DTensor) and isinstance(p.grad, DTensor) and p.placements != p.grad.placements
        ):
            return UsageError(f"muon: the gradient of {what} is not laid out like its parameter")
    return None


def settle(
    meeting: Rendezvous, problem: KinemillError | None, mine: Decision | None, mark: str, lines: Sequence[str]
) -> Decision:
    """Exchange decision, plan hash and trouble; return the lowest rank's decision.

    Raises:
        KinemillError: This rank's own problem.
        UsageError: Another rank's problem, or ranks whose parameters or settings differ from the lowest rank's.
    """
    asked = mine.asked if mine is not None else None
    gathered = meeting.gather(json.dumps({"problem": str(problem) if problem else None, "mark": mark, "asked": asked}))
    if gathered is not None:
        said = [json.loads(text) for text in gathered]
        ranks = [
            rank for rank, one in zip(meeting.ranks, said, strict=True) if one["mark"] != mark or one["asked"] != asked
        ]
        troubled = [(r, one["problem"]) for r, one in zip(meeting.ranks, said, strict=True) if one["problem"]]
        verdict = {
            "decision": mine.as_dict() if mine is not None else None,
            "differ": ranks,
            "trouble": troubled[0] if troubled else None,
            "asked": asked,
            "lines": list(lines) if ranks else None,
        }
        answer = meeting.answer(json.dumps(verdict))
    else:
        answer = meeting.answer()
    if problem is not None:
        raise problem
    verdict = json.loads(answer)
    if verdict["trouble"]:
        rank, text = verdict["trouble"]
        raise UsageError(f"muon: rank {rank}: {text}")
    if verdict["differ"]:
        raise UsageError(_difference(meeting, verdict, asked, lines))
    return Decision(**verdict["decision"])


def _difference(meeting: Rendezvous, verdict: dict[str, Any], asked: str | None, lines: Sequence[str]) -> str:
    text = f"muon: ranks {verdict['differ']} were given other arguments than rank {meeting.ranks[0]}"
    if meeting.rank not in verdict["differ"]:
        return text + "; their own messages say where"
    if asked != verdict["asked"]:
        return f"{text}: rank {meeting.rank} has strategy '{asked}', not '{verdict['asked']}'"
    theirs = verdict["lines"]
    for i in range(max(len(lines), len(theirs))):
        here = lines[i] if i < len(lines) else "nothing"
        there = theirs[i] if i < len(theirs) else "nothing"
        if here != there:
            return (
                f"{text}: rank {meeting.rank}'s parameter {i} is '{here}', not '{there}'. Pass parameters in one order "
                "on all ranks (never from a set)"
            )
    return f"{text}: bucket_mb, check_every or a group's Newton-Schulz settings differ on rank {meeting.rank}"
