"""Roles, inventories and templates of this repository, as tests read them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[2]
ROLES = REPO / "roles"
INVENTORIES = REPO / "inventories"


def role_names(roles: Path = ROLES) -> list[str]:
    """Names of the roles below a folder."""
    return sorted(path.name for path in roles.iterdir() if path.is_dir())


def inventory_names(inventories: Path = INVENTORIES) -> list[str]:
    """Names of the inventories below a folder."""
    return sorted(path.name for path in inventories.iterdir() if (path / "hosts.yml").is_file())


def load(path: Path) -> Any:
    """One YAML file; an absent or empty one is an empty mapping."""
    return (yaml.safe_load(path.read_text(encoding="utf-8")) or {}) if path.is_file() else {}


def default_keys(role: Path) -> set[str]:
    """Names in a role's defaults."""
    return set(load(role / "defaults" / "main.yml"))


def spec_keys(role: Path) -> set[str]:
    """Names that a role's specs declare, over all its entry points."""
    specs = load(role / "meta" / "argument_specs.yml").get("argument_specs", {})
    return {name for entry in specs.values() for name in (entry.get("options") or {})}


def load_module(path: Path) -> ModuleType:
    """Import one file that is no part of a package, such as a role's module."""
    spec = importlib.util.spec_from_file_location(f"loaded_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def render(template: Path, *, role: Path, inventory: Path, extra: Mapping[str, Any] | None = None) -> str:
    """Render a role's template as Ansible would for the inventory's first host.

    Args:
        template: The template.
        role: The role's folder; its defaults and those of platform_defaults apply.
        inventory: The inventory's folder.
        extra: Variables that win over the inventory's.

    Returns:
        The text.
    """
    from ansible.inventory.manager import InventoryManager
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template
    from ansible.vars.manager import VariableManager

    loader = DataLoader()
    manager = InventoryManager(loader=loader, sources=[str(inventory)])
    host = manager.get_hosts("all")[0]
    variables: dict[str, Any] = {}
    for one in (role.parent / "platform_defaults", role):
        variables |= loader.load_from_file(str(one / "defaults" / "main.yml"), trusted_as_template=True) or {}
    inherited = VariableManager(loader=loader, inventory=manager).get_vars(host=host)
    variables |= {key: value for key, value in inherited.items() if key != "environment"}
    variables |= {"role_path": str(role), "ansible_playbook_python": sys.executable, **(extra or {})}
    text = Templar(loader=loader, variables=variables).template(trust_as_template(template.read_text("utf-8")))
    return str(text)


def playbook(*arguments: str | Path, deadline_s: float = 600, cwd: Path = REPO) -> subprocess.CompletedProcess[str]:
    """Run ansible-playbook from the test's own environment.

    Args:
        *arguments: What follows the command's name.
        deadline_s: When to give up.
        cwd: Where to run it.

    Returns:
        Status and output.
    """
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("ANSIBLE_")},
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_NOCOWS": "1",
        "LC_ALL": "C.UTF-8",
    }
    command = [str(Path(sys.executable).parent / "ansible-playbook"), *map(str, arguments)]
    return subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=deadline_s, check=False
    )


def recap(output: str, host: str = "localhost") -> dict[str, int]:
    """The counts of the play recap's line of a host."""
    lines: Sequence[str] = [line for line in output.splitlines() if line.startswith(f"{host} ") and "ok=" in line]
    assert lines, output[-4000:]
    return {key: int(value) for key, value in (word.split("=") for word in lines[-1].split() if "=" in word)}
