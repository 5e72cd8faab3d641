"""What roles, inventories and the Python that reads their output agree on."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from kinemill.control.inventory import inventory_faults
from support.ansible import (
    INVENTORIES,
    REPO,
    ROLES,
    default_keys,
    inventory_names,
    load,
    playbook,
    render,
    role_names,
    spec_keys,
)
from support.layers import skip

PHASES = ["preflight", "install", "configure", "verify"]


def consumers(role: Path) -> dict[str, str]:
    """Template -> `module:function` that loads the rendered text and raises where it is not sound."""
    return dict(load(role / "meta" / "consumers.yml").get("consumers", {}))


def templates(role: Path) -> set[str]:
    folder = role / "templates"
    return {str(path.relative_to(folder)) for path in folder.rglob("*.j2")} if folder.is_dir() else set()


@pytest.mark.parametrize("name", role_names())
def test_defaults_are_what_the_specs_declare(name: str) -> None:
    role = ROLES / name
    assert spec_keys(role), f"{name}: meta/argument_specs.yml declares nothing"
    assert default_keys(role) == spec_keys(role)


@pytest.mark.parametrize("name", role_names())
def test_phases_are_files_with_their_tags(name: str) -> None:
    tasks = ROLES / name / "tasks"
    if name == "platform_defaults":
        assert not tasks.exists()
        return
    imported = {task["ansible.builtin.import_tasks"]: task["tags"] for task in load(tasks / "main.yml")}
    present = [phase for phase in PHASES if (tasks / f"{phase}.yml").is_file()]
    assert list(imported) == [f"{phase}.yml" for phase in present]
    assert imported == {f"{phase}.yml": [f"{name}_{phase}"] for phase in present}
    assert "verify" in present


@pytest.mark.parametrize("name", inventory_names())
def test_every_inventory_variable_is_declared(name: str) -> None:
    faults = inventory_faults(
        [str(INVENTORIES / name)],
        roles_dir=ROLES,
        removed_file=ROLES / "platform_validate" / "files" / "removed_variables.yml",
    )
    assert [str(fault) for fault in faults] == []


@pytest.mark.parametrize("name", role_names())
def test_every_template_names_its_consumer(name: str) -> None:
    assert set(consumers(ROLES / name)) == templates(ROLES / name)


@pytest.mark.parametrize(
    ("role", "template", "consumer"),
    [(name, *item) for name in role_names() for item in sorted(consumers(ROLES / name).items())] or [("", "", "")],
)
@pytest.mark.parametrize("inventory", inventory_names())
def test_every_template_is_loaded_by_its_consumer(role: str, template: str, consumer: str, inventory: str) -> None:
    if not role:
        skip("no role has a template yet", run="a role with a template")
    text = render(ROLES / role / "templates" / template, role=ROLES / role, inventory=INVENTORIES / inventory)
    module, _, function = consumer.partition(":")
    getattr(importlib.import_module(module), function)(text)


def test_site_is_a_list_of_imports() -> None:
    for play in load(REPO / "site.yml"):
        assert set(play) == {"name", "ansible.builtin.import_playbook"}
        assert (REPO / play["ansible.builtin.import_playbook"]).is_file()


def test_every_phase_in_the_site_can_be_run_alone_by_its_tag() -> None:
    done = playbook("--list-tags", "-i", INVENTORIES / "sandbox", REPO / "site.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    listed = {tag for line in done.stdout.splitlines() if "TASK TAGS:" in line for tag in re.findall(r"\w+", line)}
    for name in set(role_names()) - {"adhoc", "platform_defaults"}:
        for task in load(ROLES / name / "tasks" / "main.yml"):
            assert set(task["tags"]) <= listed, f"{name}: an include in a playbook hides it"
