"""An inventory with faults is refused by the role, before anything is touched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from kinemill.control.inventory import inventory_faults
from kinemill.errors import ConfigError, NotFoundError
from support.ansible import INVENTORIES, ROLES, playbook

REMOVED = ROLES / "platform_validate" / "files" / "removed_variables.yml"


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A copy of the local inventory, to break."""
    return Path(shutil.copytree(INVENTORIES / "local", tmp_path / "inventory"))


def test_every_fault_is_named_in_one_run(inventory: Path, tmp_path: Path) -> None:
    # given a misspelt name, a wrong type and a removed name, in three places
    (inventory / "group_vars" / "all" / "zz.yml").write_text("---\nkinemill_bulid_dir: /x\npython_artifact_keep: '3'\n")
    (inventory / "host_vars").mkdir()
    (inventory / "host_vars" / "localhost.yml").write_text("---\nagent_root: /opt\n")
    removed = tmp_path / "removed.yml"
    removed.write_text("removed_variables: {agent_root: {release: 0.2.0, instead: set kinemill_opt_dir}}\n")
    # when the playbook runs, with a fourth fault on the command line
    done = playbook(
        "site.yml", "-i", inventory, "-e", f"platform_validate_removed_file={removed}", "-e", "vendor_nam=x"
    )
    # then it stops there and names all four
    assert done.returncode != 0
    flat = " ".join(done.stdout.split())
    assert "zz.yml:2: kinemill_bulid_dir is declared by no role; did you mean kinemill_build_dir?" in flat
    assert "zz.yml:3: python_artifact_keep must be a whole number, not text" in flat
    assert "localhost.yml:2: agent_root was removed in release 0.2.0; set kinemill_opt_dir" in flat
    assert "command line: vendor_nam is declared by no role; did you mean vendor_name?" in flat
    assert "Build the wheelhouse" not in done.stdout


def test_an_inventory_that_is_not_there_or_not_one(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no such file or folder"):
        inventory_faults([str(tmp_path / "none")], roles_dir=ROLES, removed_file=REMOVED)
    broken = tmp_path / "group_vars"
    broken.mkdir()
    (tmp_path / "hosts.yml").write_text("all: {hosts: {a: {}}}\n")
    (broken / "all.yml").write_text("a: [unclosed\n")
    with pytest.raises(ConfigError, match=r"all\.yml"):
        inventory_faults([str(tmp_path)], roles_dir=ROLES, removed_file=REMOVED)


def test_a_removed_name_that_a_role_declares_is_a_fault_of_the_list(inventory: Path, tmp_path: Path) -> None:
    removed = tmp_path / "removed.yml"
    removed.write_text("removed_variables: {vendor_name: {release: 0.2.0, instead: nothing}}\n")
    with pytest.raises(ConfigError, match="vendor_name is declared by a role"):
        inventory_faults([str(inventory)], roles_dir=ROLES, removed_file=removed)
