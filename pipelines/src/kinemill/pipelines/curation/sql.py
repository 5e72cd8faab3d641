"""A curation spec as one SQL text, written so that engines agree on what it says.

Random choices are md5 texts compared as texts: every engine has them, and none may order floats its own way.
Numbers are written in full, strings are quoted here and nowhere else.
"""

from __future__ import annotations

import math

from kinemill.pipelines.curation.spec import FILTERABLE, CurationSpec, Filter, Value, WeightRule
from kinemill.pipelines.warehouse.schema import CURRENT_SQL

__all__ = ["CODE_VERSION", "chosen_sql", "condition", "literal"]

CODE_VERSION = "2"
"""Part of a manifest's id: raised when the same spec and snapshot give other rows, another order or another file."""

_HEX_DIGITS = 8


def literal(value: Value) -> str:
    """A value as SQL."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value} has no place in a query")
        return f"{value!r}" if "e" in repr(value) else f"{value!r}e0"
    return "'" + value.replace("'", "''") + "'"


def _column(name: str) -> str:
    if name.startswith("score:"):
        # A JSON pointer, in which ~ and / of a name are written ~0 and ~1.
        key = name.removeprefix("score:").replace("~", "~0").replace("/", "~1")
        return f"cast(json_extract_string(quality, {literal('/' + key)}) as double)"
    return name


def condition(asked: Filter) -> str:
    """One filter as a SQL condition."""
    column = _column(asked.column)
    parts = []
    if asked.equals is not None:
        parts.append(f"{column} = {literal(asked.equals)}")
    if asked.any_of:
        parts.append(f"{column} in ({', '.join(map(literal, asked.any_of))})")
    if asked.none_of:
        parts.append(f"{column} not in ({', '.join(map(literal, asked.none_of))})")
    if asked.at_least is not None:
        parts.append(f"{column} >= {literal(asked.at_least)}")
    if asked.at_most is not None:
        parts.append(f"{column} <= {literal(asked.at_most)}")
    if asked.like is not None:
        parts.append(f"{column} like {literal(asked.like)}")
    if asked.has is not None:
        assert FILTERABLE[asked.column] == "list<string>"  # noqa: S101 - Filter has checked
        parts.append(f"list_contains({column}, {literal(asked.has)})")
    return "(" + " and ".join(parts) + ")"


def _weight(rules: tuple[WeightRule, ...]) -> str:
    factors = []
    for rule in rules:
        when = " and ".join(condition(f) for f in rule.when) or "true"
        factors.append(f"case when {when} then {literal(float(rule.weight))} else 1e0 end")
    return " * ".join(factors) or "1e0"


def _split(spec: CurationSpec) -> str:
    """A CASE over md5 texts: the first digits are a number between 0 and 1, written in hex."""
    what = "hex(episode_id)" if spec.split_by == "episode" else spec.split_by
    digits = f"left(md5({what} || ':split:' || '{spec.split_seed}'), {_HEX_DIGITS})"
    names = sorted(spec.splits)
    whens = []
    below = 0.0
    for name in names[:-1]:
        below += spec.splits[name]
        edge = min(16**_HEX_DIGITS - 1, round(below * 16**_HEX_DIGITS))
        whens.append(f"when {digits} < '{edge:0{_HEX_DIGITS}x}' then {literal(name)}")
    last = literal(names[-1])
    return f"case {' '.join(whens)} else {last} end" if whens else last


def chosen_sql(spec: CurationSpec, table: str) -> str:
    """The rows of the manifest, without order: its columns, and `order_key` to sort by.

    Args:
        spec: What to take.
        table: How the engine names the warehouse table at the wanted snapshot.
    """
    wheres = ["state = 'published'", "not tombstone", f"profile = {literal(spec.profile)}"]
    wheres += [condition(f) for f in spec.filters]
    weight = _weight(spec.weights)
    if spec.balance_by is not None:
        # Summed as decimals, whose sum does not depend on the order: the same bytes each time.
        total = f"sum(cast({weight} as decimal(38, 9))) over (partition by {spec.balance_by})"
        weight = f"({weight}) / cast({total} as double)"
    order = f"md5(hex(episode_id) || ':' || profile || ':order:' || '{spec.seed}')"
    limit = f"\nqualify row_number() over (order by order_key, episode_id) <= {spec.max_rows}" if spec.max_rows else ""
    return f"""select episode_id, profile, sha256, size_bytes, vendor, robot, task, instruction,
  {_split(spec)} as split,
  t_first_ns, duration_ns, frames, fps,
  cast({weight} as float) as weight,
  topics, layout,
  {order} as order_key
from ({CURRENT_SQL.format(table=table)}) as newest
where {" and ".join(wheres)}{limit}"""  # noqa: S608 - names are checked, values are quoted by `literal`
