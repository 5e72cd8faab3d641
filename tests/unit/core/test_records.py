"""The strict decoder."""

from __future__ import annotations

import contextlib
import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.errors import ContractError, UnknownKeyError
from kinemill.records import decode, dumps, encode, loads


class Colour(enum.StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    ratio: float


@dataclass(frozen=True, slots=True)
class Outer:
    count: int
    name: str = "x"
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()
    pair: tuple[int, str] = (1, "a")
    table: dict[str, int] = field(default_factory=dict)
    colour: Colour = Colour.RED
    mode: Literal["a", "b"] = "a"
    blob: bytes = b""
    path: Path = Path("/")
    either: int | str = 0

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError("count is negative")


def test_a_full_record_survives_json() -> None:
    record = Outer(
        3, "y", Inner(0.5), (Inner(1.0), Inner(2.0)), (7, "b"), {"k": 1}, Colour.RED, "b", b"\x00\xff", Path("/a"), "z"
    )
    assert loads(Outer, dumps(record)) == record


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"cuont": 1}, "unknown key 'cuont'; did you mean 'count'"),
        ({"count": 1, "zzzzzz": 1}, "known keys: .*count"),
        ({}, "key 'count' is missing"),
        ({"count": True}, "expected int, got bool"),
        ({"count": "1"}, "expected int, got str"),
        ({"count": 1.0}, "expected int, got float"),
        ({"count": -1}, "count is negative"),
        ({"count": 1, "inner": {"ratio": float("nan")}}, "not a finite number"),
        ({"count": 1, "inner": []}, "expected a table"),
        ({"count": 1, "many": {}}, "expected a list"),
        ({"count": 1, "many": [{"ratio": "x"}]}, r"many\[0\].ratio"),
        ({"count": 1, "pair": [1]}, "expected 2 items"),
        ({"count": 1, "table": {"k": "v"}}, "table.k"),
        ({"count": 1, "colour": "blue"}, "not one of"),
        ({"count": 1, "mode": "c"}, "not one of"),
        ({"count": 1, "blob": "xyz"}, "not hex"),
        ({"count": 1, "either": 1.5}, "or "),
        ([], "expected a table"),
    ],
)
def test_what_does_not_fit_is_refused_in_words(data: Any, match: str) -> None:
    with pytest.raises(ContractError, match=match):
        decode(Outer, data, where="file.json")


def test_the_error_for_a_misspelt_key_has_its_own_type_and_names_the_file() -> None:
    with pytest.raises(UnknownKeyError, match=r"^file\.json: "):
        decode(Outer, {"count": 1, "nmae": "x"}, where="file.json")


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "nan", b"\xff\xfe"])
def test_what_is_not_json_is_a_contract_error(text: str | bytes) -> None:
    with pytest.raises(ContractError):
        loads(Outer, text)


def test_nan_is_not_written() -> None:
    with pytest.raises(ContractError, match="no place in JSON"):
        encode({"x": float("inf")})


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda s: st.lists(s) | st.dictionaries(st.text(), s),
        max_leaves=20,
    )
)
def test_any_plain_data_ends_in_a_record_or_a_contract_error(data: Any) -> None:
    with contextlib.suppress(ContractError):
        assert isinstance(decode(Outer, data), Outer)
