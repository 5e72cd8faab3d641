"""The playbooks of playbooks/adhoc: each says what it does, is sound, and refuses before it touches anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from support.ansible import INVENTORIES, REPO, playbook

FOLDER = REPO / "playbooks" / "adhoc"
PLAYBOOKS = sorted(FOLDER.glob("*.yml"))


@pytest.fixture(scope="module")
def inventory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster whose hosts are all this machine, so that a task that slips through is seen and harms nobody."""
    folder = tmp_path_factory.mktemp("inventory")
    local = {"ansible_connection": "local", "ansible_python_interpreter": "{{ ansible_playbook_python }}"}
    hosts = {"slurm_controllers": ["ctl"], "slurm_nodes": ["n1", "n2"], "agents": ["ctl", "n1", "n2"]}
    groups = {group: {"hosts": dict.fromkeys(names)} for group, names in hosts.items()}
    variables = {
        **local,
        "kinemill_become": False,
        "slurm_controller_cluster_name": "paper",
        "slurm_controller_nodes": [{"name": "n[1-2]", "cpus": 1, "memory_mb": 1}],
    }
    (folder / "hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups, "vars": variables}}))
    return folder


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_its_head_says_what_it_does_how_what_it_changes_and_how_to_undo_it(path: Path) -> None:
    head = re.match(r"---\n((?:#.*\n)+)", path.read_text())
    assert head is not None
    assert f"ansible-playbook playbooks/adhoc/{path.name} -i inventories/" in head[1]
    assert "# Changes: " in head[1]
    assert "# Undo: " in head[1]
    plays = yaml.safe_load(path.read_text())
    assert plays[0]["ansible.builtin.import_playbook"] == "common/asked.yml"
    assert plays[0]["vars"] == {"adhoc_playbook": path.stem}


@pytest.mark.parametrize("path", PLAYBOOKS, ids=lambda path: path.stem)
def test_operating_md_has_a_row_for_it(path: Path) -> None:
    assert f"`{path.name}`" in (REPO / "docs" / "operating.md").read_text()


def test_all_parse() -> None:
    done = playbook("--syntax-check", "-i", INVENTORIES / "sandbox", *PLAYBOOKS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("playbook: ") == len(PLAYBOOKS)


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("drain", ["adhoc_nodes=n9", "adhoc_reason=x", "adhoc_who=a"], "n9 is not in the inventory's"),
        ("reboot", ["adhoc_reason=x", "adhoc_who=a"], "adhoc_nodes is empty"),
        ("uninstall", ["adhoc_confirm=else"], "say -e adhoc_confirm=paper"),
        ("remove_node", ["adhoc_nodes=n1", "adhoc_reason=x", "adhoc_who=a", "--limit=n1"], "--limit hides"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_touched(
    inventory: Path, name: str, given: list[str], said: str
) -> None:
    options = [word if word.startswith("-") else f"--extra-vars={word}" for word in given]
    done = playbook(FOLDER / f"{name}.yml", "-i", inventory, *options)
    assert done.returncode == 2, done.stdout + done.stderr
    assert said in re.sub(r"\s+", " ", done.stdout + done.stderr)
    plays = re.findall(r"^PLAY \[(.*)\]", done.stdout, flags=re.MULTILINE)
    assert plays == ["Check the inventory", "Refuse what cannot be meant"]
    assert re.findall(r"changed=(\d+)", done.stdout).count("0") == done.stdout.count("changed=")


def test_a_misspelt_variable_is_refused_with_the_right_name(inventory: Path) -> None:
    done = playbook(FOLDER / "drain.yml", "-i", inventory, "-e", "adhoc_node=n1")
    assert done.returncode == 2
    assert "did you mean adhoc_nodes?" in done.stdout + done.stderr


def test_a_new_node_gets_every_role_that_the_site_gives_its_nodes() -> None:
    site = [REPO / play["ansible.builtin.import_playbook"] for play in yaml.safe_load((REPO / "site.yml").read_text())]
    plays = [play for path in site for play in yaml.safe_load(path.read_text()) if "roles" in play]
    on_nodes = [play for play in plays if play["hosts"].split(":")[-1] in {"slurm_nodes", "agents"}]
    given = [play for play in yaml.safe_load((FOLDER / "add_node.yml").read_text()) if "roles" in play]
    wanted = {role["role"] for play in on_nodes for role in play["roles"]} - {"platform_defaults"}
    assert wanted <= {role["role"] for play in given for role in play["roles"]}
