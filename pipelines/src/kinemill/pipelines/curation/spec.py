"""The curation spec: what to take, how much it weighs, how it is split."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from kinemill import records
from kinemill.errors import ConfigError, ContractError, LimitError, NotFoundError
from kinemill.pipelines.adapters.vendor import MAX_YAML_BYTES, load_yaml
from kinemill.pipelines.warehouse.schema import EPISODES
from kinemill.records import decode, nearest

__all__ = ["CurationSpec", "Filter", "WeightRule", "load_spec", "parse_spec"]

Value = str | int | float | bool

FILTERABLE: dict[str, str] = {
    c.name: c.type
    for c in EPISODES
    if c.type in ("string", "long", "int", "float", "boolean", "list<string>")
    and c.name not in ("topics", "quality", "labels", "state", "seq", "tombstone")
}
"""Columns that a spec may ask about. Quality scores are asked for as `score:<check name>`."""


@dataclass(frozen=True, slots=True)
class Filter:
    """One condition on one column; all that are given have to hold.

    Raises:
        ContractError: An unknown column, or nothing asked of it.
    """

    column: str
    """A warehouse column, or `score:<check>` for a quality score."""
    equals: Value | None = None
    any_of: tuple[Value, ...] = ()
    none_of: tuple[Value, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    like: str | None = None
    """SQL LIKE: `%` any text, `_` any character."""
    has: str | None = None
    """For list columns such as `groups`: the list holds this word."""

    def __post_init__(self) -> None:
        if self.column.startswith("score:"):
            if not re.fullmatch(r"score:[\w:/.-]{1,200}", self.column):
                raise ContractError(f"filter column {self.column!r}: no such name of a check")
        elif self.column not in FILTERABLE:
            close = nearest(self.column, FILTERABLE)
            hint = f"; did you mean '{close}'?" if close else f"; there are: {', '.join(sorted(FILTERABLE))}"
            raise ContractError(f"filter column '{self.column}' is not one of the warehouse's{hint}")
        asked = (self.equals, self.at_least, self.at_most, self.like, self.has)
        if all(a is None for a in asked) and not self.any_of and not self.none_of:
            raise ContractError(f"filter on '{self.column}' asks for nothing")
        is_list = FILTERABLE.get(self.column) == "list<string>"
        if is_list != (self.has is not None):
            raise ContractError(f"filter on '{self.column}': `has` is for list columns, and the only one for them")


@dataclass(frozen=True, slots=True)
class WeightRule:
    """Rows that meet all of `when` weigh `weight` times as much."""

    when: tuple[Filter, ...]
    weight: float

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ContractError(f"a weight of {self.weight}: it has to be above 0; leave rows out by a filter")


@dataclass(frozen=True, slots=True)
class CurationSpec:
    """A whole spec.

    Raises:
        ContractError: Shares that do not sum to 1, or a name that cannot stand in a manifest's id.
    """

    name: str
    """Begins the manifest's id."""
    profile: str = "vla"
    """Rendition profile of the rows."""
    filters: tuple[Filter, ...] = ()
    weights: tuple[WeightRule, ...] = ()
    balance_by: Literal["vendor", "robot", "task", "site", "delivery"] | None = None
    """Every value of this column gets the same total weight."""
    splits: dict[str, float] = field(default_factory=lambda: {"train": 1.0})
    """Split -> share of the episodes; shares sum to 1."""
    split_by: Literal["episode", "vendor", "robot", "task", "site", "delivery"] = "episode"
    """Rows that share this stay in one split."""
    split_seed: int = 0
    """Apart from `seed`, so that another order never moves an episode from test to train."""
    seed: int = 0
    """Decides the order of rows, and which are taken where `max_rows` is given."""
    max_rows: int | None = None
    layouts: Literal["inline", "sidecar"] = "inline"
    """Where loaders find the chunk tables: in the manifest (about 0.7 KB a minute), or in an object beside each
    episode, fetched on its first visit; the build writes those that are missing."""
    statistics_episodes: int = 256
    """So many episodes give the statistics that loaders normalise by; 0: none are kept."""
    version: int = 1

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,47}", self.name):
            raise ContractError(f"spec name {self.name!r}: lower-case letters, digits and - only, at most 48")
        if not self.splits or any(not (0 < s <= 1) for s in self.splits.values()):
            raise ContractError(f"spec '{self.name}': each split's share is in (0, 1]")
        if abs(sum(self.splits.values()) - 1.0) > 1e-9:
            raise ContractError(f"spec '{self.name}': the shares sum to {sum(self.splits.values()):g}, not to 1")
        if any(not re.fullmatch(r"[a-z0-9_]{1,40}", s) for s in self.splits):
            raise ContractError(f"spec '{self.name}': split names have lower-case letters, digits and _ only")
        if self.max_rows is not None and self.max_rows < 1:
            raise ContractError(f"spec '{self.name}': max_rows must be at least 1")
        if not 0 <= self.statistics_episodes <= 100_000:
            raise ContractError(f"spec '{self.name}': statistics_episodes is in 0..100000")

    @property
    def sha256(self) -> str:
        """Of what the spec says, not of how it is written down."""
        return hashlib.sha256(records.dumps(self).encode()).hexdigest()


def parse_spec(text: str, where: str = "spec") -> CurationSpec:
    """A spec from YAML text.

    Raises:
        UnknownKeyError: A key that is none; the nearest one is suggested.
        ConfigError: Anything else that is wrong with it.
    """
    if len(text) > MAX_YAML_BYTES:
        raise LimitError(f"{where} is larger than {MAX_YAML_BYTES >> 10} KiB")
    data = load_yaml(text, where)
    if not isinstance(data, dict):
        raise ConfigError(f"{where}: a spec is a table of keys, starting with `name:`")
    return decode(CurationSpec, data, where=where)


def load_spec(path: Path) -> CurationSpec:
    """A spec from a YAML file; errors as `parse_spec`.

    Raises:
        NotFoundError: No such file.
    """
    if not path.is_file():
        raise NotFoundError(f"no curation spec at {path}")
    if path.stat().st_size > MAX_YAML_BYTES:
        raise LimitError(f"{path} is larger than {MAX_YAML_BYTES >> 10} KiB")
    return parse_spec(path.read_text(encoding="utf-8"), str(path))
