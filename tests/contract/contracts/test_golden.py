"""Old records load for ever: one golden file a contract, written once, never rewritten."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from kinemill import contracts
from kinemill.errors import ContractError, UnknownKeyError
from kinemill.records import decode, dumps, loads
from support.contract_examples import examples, receipt

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", sorted(examples()))
def test_golden_file_loads_as_the_example_and_is_written_back_the_same(name: str) -> None:
    example = examples()[name]
    text = (GOLDEN / f"{name}.v1.json").read_text(encoding="utf-8")
    assert loads(type(example), text) == example
    assert dumps(example, indent=1) + "\n" == text


def test_every_golden_file_still_has_its_contract() -> None:
    assert {p.name.split(".")[0] for p in GOLDEN.glob("*.json")} == set(examples())


def test_every_record_with_a_version_has_an_example() -> None:
    records = [getattr(contracts, n) for n in contracts.__all__]
    versioned = {
        r
        for r in records
        if isinstance(r, type)
        and dataclasses.is_dataclass(r)
        and "version" in {f.name for f in dataclasses.fields(r)}
        and r is not contracts.NodeInfo
    }
    assert versioned <= {type(e) for e in examples().values()}


@pytest.mark.parametrize("name", sorted(examples()))
def test_records_are_frozen_slotted_and_documented(name: str) -> None:
    cls = type(examples()[name])
    assert cls.__doc__
    assert cls.__dataclass_params__.frozen
    assert hasattr(cls, "__slots__")


@pytest.mark.parametrize("name", sorted(examples()))
def test_an_unknown_key_is_refused_by_name(name: str) -> None:
    data = json.loads((GOLDEN / f"{name}.v1.json").read_text(encoding="utf-8"))
    data["surprise"] = 1
    with pytest.raises(UnknownKeyError, match="surprise"):
        decode(type(examples()[name]), data)


@pytest.mark.parametrize("name", sorted(examples()))
def test_each_field_of_the_wrong_type_is_refused_by_name(name: str) -> None:
    cls = type(examples()[name])
    data = json.loads((GOLDEN / f"{name}.v1.json").read_text(encoding="utf-8"))
    for key in data:
        with pytest.raises(ContractError, match=key):
            decode(cls, {**data, key: {"not": ["this"]}})


def test_columns_of_unequal_length_are_refused() -> None:
    data = json.loads(dumps(receipt()))
    data["groups"][0]["chunks"]["crc32"].pop()
    with pytest.raises(ContractError, match=r"groups\[0\].chunks.*length"):
        decode(contracts.Receipt, data)
