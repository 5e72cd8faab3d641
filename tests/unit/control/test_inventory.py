"""Checking an inventory against what the roles declare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinemill.control.inventory import (
    Declared,
    Removed,
    Setting,
    declared_variables,
    judge,
    removed_variables,
    value_faults,
)
from kinemill.errors import ConfigError, NotFoundError

DECLARED = {
    name: Declared(name, "demo", spec)
    for name, spec in {
        "demo_nodes": {"type": "int"},
        "demo_provides": {"type": "list", "elements": "str", "choices": ["slurm", "driver"]},
        "demo_partitions": {
            "type": "list",
            "elements": "dict",
            "options": {"name": {"type": "str", "required": True}, "cap": {"type": "float"}},
        },
        "demo_enabled": {"type": "bool"},
    }.items()
}


def one(name: str, value: Any) -> list[str]:
    return [fault.message for fault in judge([Setting(name, value, "x.yml:1")], DECLARED, {})]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("demo_nodes", 3),
        ("demo_provides", ["slurm"]),
        ("demo_partitions", [{"name": "main", "cap": 1}]),
        ("demo_enabled", False),
        ("demo_nodes", "{{ groups['nodes'] | length }}"),
        ("ansible_user", "root"),
        ("molecule_file", "x"),
    ],
)
def test_sound_settings_pass(name: str, value: Any) -> None:
    assert one(name, value) == []


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("demo_node", 3, "demo_node is declared by no role; did you mean demo_nodes?"),
        ("zzz", 3, "zzz is declared by no role"),
        ("demo_nodes", "3", "demo_nodes must be a whole number, not text"),
        ("demo_nodes", True, "demo_nodes must be a whole number, not true or false"),
        ("demo_nodes", None, "demo_nodes is empty; remove it or give it a value"),
        ("demo_enabled", "yes", "demo_enabled must be true or false, not text"),
        ("demo_provides", "slurm", "demo_provides must be a list, not text"),
        (
            "demo_provides",
            ["slrum"],
            "demo_provides[0] is 'slrum', must be one of slurm, driver; did you mean slurm?",
        ),
        ("demo_partitions", [{"nam": "x", "name": "y"}], "demo_partitions[0].nam is not known; did you mean name?"),
        ("demo_partitions", [{"cap": 1.5}], "demo_partitions[0].name is missing"),
    ],
)
def test_a_fault_says_what_is_wrong(name: str, value: Any, message: str) -> None:
    assert one(name, value) == [message]


def test_all_faults_are_found_at_once() -> None:
    # given an inventory with one fault of each kind
    settings = [
        Setting("demo_node", 3, "a.yml:1"),
        Setting("demo_nodes", [], "a.yml:2"),
        Setting("old_name", 1, "a.yml:3"),
    ]
    # when it is judged
    faults = judge(settings, DECLARED, {"old_name": Removed("1.2.0", "set demo_nodes")})
    # then none hides another, and each says where
    assert [(fault.where, fault.kind) for fault in faults] == [
        ("a.yml:1", "unknown"),
        ("a.yml:2", "type"),
        ("a.yml:3", "removed"),
    ]
    assert str(faults[2]) == "a.yml:3: old_name was removed in release 1.2.0; set demo_nodes"


def test_a_value_of_the_wrong_type_is_not_printed() -> None:
    faults = value_faults({"type": "int"}, "hunter2", "demo_secret")
    assert faults == ["demo_secret must be a whole number, not text"]


def role(roles: Path, name: str, text: str) -> None:
    meta = roles / name / "meta"
    meta.mkdir(parents=True)
    (meta / "argument_specs.yml").write_text(text)


SPEC = "argument_specs: {main: {options: {shared_name: {type: int}}}}\n"


def test_one_role_owns_a_variable(tmp_path: Path) -> None:
    role(tmp_path, "a", SPEC)
    role(tmp_path, "b", SPEC)
    with pytest.raises(ConfigError, match="shared_name is declared by role a too"):
        declared_variables(tmp_path)


def test_a_spec_that_is_none_is_refused(tmp_path: Path) -> None:
    role(tmp_path, "a", "just text\n")
    with pytest.raises(ConfigError, match="argument_specs"):
        declared_variables(tmp_path)
    with pytest.raises(NotFoundError):
        declared_variables(tmp_path / "nowhere")


@pytest.mark.parametrize("text", ["removed_variables: {old: {release: '1'}}", "removed_variables: {old: gone}", "- x"])
def test_a_removal_without_advice_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "removed.yml").write_text(text)
    with pytest.raises(ConfigError, match="needs 'release' and 'instead'"):
        removed_variables(tmp_path / "removed.yml")
