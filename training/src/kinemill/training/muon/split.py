"""Which parameters Muon steps and which AdamW: by module type and by name, said aloud, refusing to guess."""

from __future__ import annotations

import fnmatch
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

import torch.distributed as dist
from torch import nn
from torch.nn.modules.conv import _ConvNd

from kinemill.errors import UsageError
from kinemill.training.muon.arguments import clean_name

__all__ = ["split_params"]


def split_params(
    model: nn.Module,
    *,
    head: str | Iterable[str] = (),
    embed: str | Iterable[str] = (),
    adamw: str | Iterable[str] = (),
    muon: str | Iterable[str] = (),
    flatten: bool = False,
    out: TextIO | None = sys.stderr,
) -> list[dict[str, Any]]:
    """The parameter groups of a model for `Muon`, by name, and a printed table of why.

    Muon takes 2-dimensional weights of hidden layers. AdamW takes embeddings, heads, norms, biases and everything
    else below two dimensions, and convolution kernels unless `flatten`. Frozen parameters are left out.

    Args:
        model: Bare, or wrapped by DDP, FSDP2 or torch.compile.
        head: Names (patterns as in a shell, ``*``) of output layers' weights; AdamW takes them.
        embed: Names of embeddings that are no nn.Embedding; AdamW takes them.
        adamw: Further names for AdamW.
        muon: Names for Muon against the rules above.
        flatten: Let Muon step convolution kernels, as (out channels, rest) matrices.
        out: Where to print; only rank 0 does.

    Returns:
        Up to three groups of (name, parameter): Muon, Muon with ``flatten``, AdamW.

    Raises:
        UsageError: A tied or head-shaped weight that no argument names; 3-D and higher weights that are no
            convolution and that no argument names; a pattern that matches nothing.
    """
    told = {"head": _patterns(head), "embed": _patterns(embed), "adamw": _patterns(adamw), "muon": _patterns(muon)}
    homes = _homes(model)
    used: set[tuple[str, str]] = set()
    vocabularies = {m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    rows: list[tuple[str, str, str, nn.Parameter]] = []
    for parameter, places in homes:
        names = [name for name, _ in places]
        kinds = [module for _, module in places]
        named = _named(names, told, used)
        side, why = (
            ("-", "frozen")
            if not parameter.requires_grad
            else _side(parameter, names=names, kinds=kinds, named=named, vocabularies=vocabularies, flatten=flatten)
        )
        rows.append((names[0], side, why, parameter))
    unused = [
        f"{arg}={pattern!r}" for arg, patterns in told.items() for pattern in patterns if (arg, pattern) not in used
    ]
    if unused:
        raise UsageError(f"split_params: {', '.join(unused)} matches no parameter")
    if out is not None and not (dist.is_available() and dist.is_initialized() and dist.get_rank() != 0):
        out.write(_table(rows))
    groups: list[dict[str, Any]] = [
        {"params": [(n, p) for n, s, _, p in rows if s == "muon" and p.ndim == 2], "use_muon": True},
        {"params": [(n, p) for n, s, _, p in rows if s == "muon" and p.ndim > 2], "use_muon": True, "flatten": True},
        {"params": [(n, p) for n, s, _, p in rows if s == "adamw"], "use_muon": False},
    ]
    return [g for g in groups if g["params"]]


def _patterns(given: str | Iterable[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _homes(model: nn.Module) -> list[tuple[nn.Parameter, list[tuple[str, nn.Module]]]]:
    """Each parameter once, with every (name, module) that holds it."""
    found: dict[nn.Parameter, list[tuple[str, nn.Module]]] = {}
    for prefix, module in model.named_modules(remove_duplicate=False):
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = clean_name(f"{prefix}.{name}" if prefix else name)
            places = found.setdefault(parameter, [])
            if full not in [n for n, _ in places]:
                places.append((full, module))
    return list(found.items())


def _named(names: Sequence[str], told: dict[str, list[str]], used: set[tuple[str, str]]) -> set[str]:
    hits = set()
    for argument, patterns in told.items():
        for pattern in patterns:
            if any(fnmatch.fnmatchcase(n, pattern) or fnmatch.fnmatchcase(n, f"{pattern}.weight") for n in names):
                used.add((argument, pattern))
                hits.add(argument)
    return hits


def _side(
    parameter: nn.Parameter,
    *,
    names: Sequence[str],
    kinds: Sequence[nn.Module],
    named: set[str],
    vocabularies: set[int],
    flatten: bool,
) -> tuple[str, str]:
    """(muon or adamw, reason)."""
    if "muon" in named and len(named) > 1:
        raise UsageError(f"split_params: {names[0]} is named for muon and for {', '.join(sorted(named - {'muon'}))}")
    if parameter.ndim < 2:
        if "muon" in named:
            raise UsageError(f"split_params: {names[0]} has {parameter.ndim} dimensions; Muon steps matrices")
        return "adamw", f"{parameter.ndim}-D"
    if named:
        argument = min(named)
        return ("muon" if argument == "muon" else "adamw"), f"named by {argument}="
    types = sorted({type(k).__name__ for k in kinds})
    if len({type(k) for k in kinds}) > 1:
        raise UsageError(
            f"split_params: {' and '.join(names)} are one tensor in {' and '.join(types)}. A tied head is stepped "
            f"once: say head='{names[-1]}' (AdamW) or muon='{names[0]}'"
        )
    kind = kinds[0]
    if isinstance(kind, nn.Embedding | nn.EmbeddingBag):
        return "adamw", "embedding"
    if "Norm" in type(kind).__name__:
        return "adamw", "norm"
    if isinstance(kind, _ConvNd):
        return ("muon", "convolution, flattened") if flatten else ("adamw", "convolution")
    if parameter.ndim > 2:
        raise UsageError(
            f"split_params: {names[0]} has {parameter.ndim} dimensions in a {types[0]}; whether that is one matrix or "
            f"a stack of them only you know: say adamw='{names[0]}', or muon='{names[0]}' for rows = dimension 0"
        )
    if parameter.shape[0] in vocabularies:
        raise UsageError(
            f"split_params: {names[0]} has as many rows as an embedding and looks like a head: say head='{names[0]}' "
            f"(AdamW), or muon='{names[0]}' if it is a hidden layer"
        )
    return "muon", "hidden matrix"


def _table(rows: Sequence[tuple[str, str, str, nn.Parameter]]) -> str:
    lines = []
    for side, title in (("muon", "Muon"), ("adamw", "AdamW"), ("-", "left alone")):
        mine = [r for r in rows if r[1] == side]
        if not mine:
            continue
        lines.append(f"{title}: {len(mine)} tensors, {sum(r[3].numel() for r in mine):,} parameters")
        wide = max(len(r[0]) for r in mine)
        lines += [f"  {n:<{wide}}  {'x'.join(map(str, p.shape)) or 'scalar':<14} {why}" for n, _, why, p in mine]
    return "\n".join(lines) + "\n"
