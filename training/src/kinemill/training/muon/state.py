"""State dicts: keyed by parameter name, complete or by parts, loadable on any topology and strategy."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Iterator
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from kinemill.errors import CorruptError, KinemillError, StateError
from kinemill.training.muon import drift
from kinemill.training.muon.decide import Decision, changed
from kinemill.training.muon.groups import Groups
from kinemill.training.muon.layout import flat_start, is_sharded, local
from kinemill.training.muon.plan import Matrix
from kinemill.training.muon.share import Share

__all__ = ["Keeper", "ShardedState", "complete", "from_torch", "load", "tensors"]

log = logging.getLogger(__name__)

_VERSION = 1
_LABELS = ("params", "param_names")


class Keeper(Protocol):
    """What an optimizer shows of itself to have its state saved and loaded; `Muon` is the one that does."""

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As torch keeps them."""
        ...

    @property
    def names(self) -> dict[Tensor, str]:
        """Parameter -> name, in the order of the groups."""
        ...

    @property
    def matrices(self) -> list[Matrix]:
        """What Muon steps."""
        ...

    @property
    def share(self) -> Share:
        """What this rank keeps of the state."""
        ...

    @property
    def groups(self) -> Groups:
        """Of processes, for the collectives."""
        ...

    @property
    def device(self) -> torch.device:
        """Of the parameters."""
        ...

    @property
    def decision(self) -> Decision:
        """How it is sharded, and why."""
        ...

    def tracked(self) -> set[str]:
        """Names of parameters that have state."""
        ...

    def state_digest(self) -> int:
        """Digest of the whole state. Collective."""
        ...

    def remember(self, earlier: dict[str, Any], note: str | None) -> None:
        """Keep the decision that a checkpoint was written under."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, hooks included. Collective."""
        ...


class ShardedState:
    """This rank's part of an optimizer's state, as torch.distributed.checkpoint wants it (`Stateful`).

    ``dcp.save({"optimizer": muon.sharded_state()}, ...)`` writes each buffer once, from the rank that keeps it;
    ``dcp.load`` of the same dict on another topology reads what each rank keeps there. Both are collective.
    """

    def __init__(self, optimizer: Keeper) -> None:
        """Args: the optimizer, which stays the owner of all tensors."""
        self._optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        """Buffers that this rank keeps, hyperparameters, and the digest of the whole."""
        found: dict[str, dict[str, Tensor]] = {}
        for name, key, tensor in tensors(self._optimizer):
            found.setdefault(name, {})[key] = tensor
        return _wrap(self._optimizer, found)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what was loaded and verify its digest."""
        self._optimizer.load_state_dict(state_dict)


def tensors(optimizer: Keeper) -> Iterator[tuple[str, str, Tensor]]:
    """(parameter name, state key, tensor) of everything this rank keeps; made of zeros where no step was taken yet."""
    for m in optimizer.matrices:
        if _tracked(optimizer, m.name) and optimizer.share.keeps(m.index):
            yield m.name, "momentum_buffer", optimizer.share.momentum_buffer(m.index)
    for name, p in optimizer.share.others:
        if _tracked(optimizer, name):
            for key, tensor in optimizer.share.adamw_state(p).items():
                yield name, key, tensor


def complete(optimizer: Keeper) -> dict[str, Any]:
    """All state on every rank; buffers of other ranks in host memory."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, key, tensor in tensors(optimizer):
        found.setdefault(name, {})[key] = tensor
    group = optimizer.share.owners
    if group is not None:
        for m in optimizer.matrices:
            if not _tracked(optimizer, m.name):
                continue
            mine = optimizer.share.keeps(m.index)
            p = local(optimizer.share.params[m.index])
            buffer = found[m.name]["momentum_buffer"] if mine else torch.empty_like(p)
            dist.broadcast(
                local(buffer), src=optimizer.share.exchange.rank_at(optimizer.share.plan.owner[m.index]), group=group
            )
            if not mine:
                found[m.name] = {"momentum_buffer": buffer.cpu()}
    return _wrap(optimizer, {n: found[n] for n in optimizer.names.values() if n in found})


def _wrap(optimizer: Keeper, found: dict[str, dict[str, Tensor]]) -> dict[str, Any]:
    names = iter(optimizer.names.values())
    groups = []
    for group in optimizer.param_groups:
        kept = {k: v for k, v in group.items() if k not in _LABELS}
        groups.append({**kept, "params": [next(names) for _ in group["params"]]})
    return {
        "state": found,
        "param_groups": groups,
        "kinemill": {
            "version": _VERSION,
            "digest": torch.tensor(optimizer.state_digest(), dtype=torch.int64),
            "layout": _layout(optimizer),
            "decision": optimizer.decision.as_dict(),
        },
    }


def _tracked(optimizer: Keeper, name: str) -> bool:
    """Whether a parameter has state: it could be trained when the optimizer was made, or can be now."""
    return name in optimizer.tracked()


def _layout(optimizer: Keeper) -> str:
    """Names and dtypes of all state: digests of two states can be compared only where these are equal."""
    rows = sorted((name, str(p.dtype)) for p, name in optimizer.names.items() if _tracked(optimizer, name))
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()[:32]


def from_torch(*state_dicts: dict[str, Any]) -> dict[str, Any]:
    """Join state dicts of torch optimizers into one that `Muon.load_state_dict` takes.

    Args:
        state_dicts: In the order of the groups of the new optimizer: torch.optim.Muon's, then torch.optim.AdamW's.
    """
    joined: dict[str, Any] = {"state": {}, "param_groups": []}
    shift = 0
    for one in state_dicts:
        joined["state"].update({pid + shift: values for pid, values in one["state"].items()})
        for group in one["param_groups"]:
            joined["param_groups"].append({**group, "params": [pid + shift for pid in group["params"]]})
        shift += sum(len(group["params"]) for group in one["param_groups"])
    return joined


def load(optimizer: Keeper, state_dict: dict[str, Any]) -> None:
    """See `Muon.load_state_dict`."""
    problem: KinemillError | None = None
    extra: dict[str, Any] = {}
    try:
        extra = _take(optimizer, state_dict)
    except KinemillError as exc:
        problem = exc
    _agree(optimizer, problem, "could not load the optimizer's state")
    _verify(optimizer, extra)


def _agree(optimizer: Keeper, problem: KinemillError | None, what: str) -> None:
    """Raise on every rank if one has a problem: nobody may walk into the next collective alone."""
    group = optimizer.groups.world
    if group is not None:
        flag = torch.tensor([int(problem is not None)], dtype=torch.int32).to(optimizer.device)
        dist.all_reduce(flag, op=dist.ReduceOp.MAX, group=group)
        if problem is None and int(flag.item()):
            raise StateError(f"muon: another rank {what}; its own message says why")
    if problem is not None:
        raise problem


def _take(optimizer: Keeper, state_dict: dict[str, Any]) -> dict[str, Any]:
    if not {"state", "param_groups"} <= set(state_dict):
        raise StateError(f"muon: a state dict has 'state' and 'param_groups', this has {sorted(state_dict)}")
    saved, groups = state_dict["state"], state_dict["param_groups"]
    if len(groups) != len(optimizer.param_groups):
        raise StateError(
            f"muon: the state has {len(groups)} parameter groups, the optimizer {len(optimizer.param_groups)}"
        )
    names = iter(optimizer.names.values())
    by_number: dict[Any, str] = {}
    numbered = False
    for number, (old, new) in enumerate(zip(groups, optimizer.param_groups, strict=True)):
        mine = [next(names) for _ in new["params"]]
        if old.get("amsgrad") or old.get("maximize"):
            raise StateError(f"muon: group {number} of the state was stepped with amsgrad or maximize; neither is here")
        theirs = list(old["params"])
        if theirs and all(isinstance(x, int) for x in theirs):  # torch's own format: positions
            numbered = True
            if len(theirs) != len(mine):
                raise StateError(f"muon: group {number} has {len(theirs)} parameters in the state, {len(mine)} here")
            by_number.update(zip(theirs, mine, strict=True))
        elif sorted(theirs) != sorted(mine):
            odd = sorted(set(theirs) ^ set(mine))
            raise StateError(
                f"muon: group {number}: parameters differ between state and optimizer: {', '.join(odd[:5])}"
            )
    named = {by_number.get(key, key): value for key, value in saved.items()}
    for name, key, target in list(tensors(optimizer)):
        if key not in named.get(name, {}):
            if numbered:  # torch keeps nothing for a parameter that was never stepped
                target.zero_()
                continue
            raise StateError(f"muon: the state has no {key} of {name}; nothing is started from zero silently")
        _fill(optimizer, target, named[name][key], f"{key} of {name}")
    for old, new in zip(groups, optimizer.param_groups, strict=True):
        known = {k: v for k, v in old.items() if k not in _LABELS and (k in new or k == "initial_lr")}
        new.update(known)
    extra = state_dict.get("kinemill")
    return dict(extra) if extra else {}


def _fill(optimizer: Keeper, mine: Tensor, saved: Tensor, what: str) -> None:
    """Copy a saved tensor into ours, whole or by rows, cast to our dtype."""
    saved = torch.as_tensor(saved)
    if saved is mine:
        return
    if tuple(saved.shape) != tuple(mine.shape):
        raise StateError(f"muon: {what} has shape {tuple(saved.shape)} in the state, {tuple(mine.shape)} here")
    if isinstance(saved, DTensor) and (not isinstance(mine, DTensor) or saved.placements != mine.placements):
        raise StateError(
            f"muon: {what} is sharded in the state and not laid out so here; load it through "
            "torch.distributed.checkpoint with sharded_state(), which reshards"
        )
    target = local(mine)
    piece = local(saved)
    if not isinstance(saved, DTensor) and is_sharded(mine):
        start = flat_start(mine, optimizer.groups)
        piece = piece.reshape(-1)[start : start + target.numel()].view(target.shape)
    target.copy_(piece)


def _verify(optimizer: Keeper, extra: dict[str, Any]) -> None:
    """Replicas equal; the whole equal to what was saved; the decision not changed in silence."""
    kept = {f"{name}.{key}": t for name, key, t in tensors(optimizer)}
    spread = {n: t for n, t in kept.items() if n.endswith(".momentum_buffer") and optimizer.share.owners is not None}
    drift.compare({n: t for n, t in kept.items() if n not in spread}, optimizer.groups, "state")
    if optimizer.decision.strategy == "node" and optimizer.share.owners is not None:
        drift.compare_sums(spread, optimizer.groups, optimizer.device)
    now = optimizer.state_digest()
    problem: KinemillError | None = None
    if extra and extra.get("layout") == _layout(optimizer) and int(extra["digest"]) != now:
        problem = CorruptError(
            f"muon: the loaded state's digest is {now & (1 << 64) - 1:016x}, saved was "
            f"{int(extra['digest']) & (1 << 64) - 1:016x}: the checkpoint is damaged or was loaded in part"
        )
    elif extra and extra.get("layout") != _layout(optimizer):
        log.info("muon: state was saved with other dtypes; it was cast, its digest cannot be compared")
    _agree(optimizer, problem, "loaded a damaged state")
    if extra.get("decision"):
        optimizer.remember(extra["decision"], changed(extra["decision"], optimizer.decision))
