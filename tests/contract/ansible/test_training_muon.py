"""`training_muon` of the inventory, muon.toml on a node, and the settings that the optimizer reads from it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import yaml

from kinemill.control.inventory import declared_variables, inventory_faults
from kinemill.errors import ConfigError
from kinemill.training.muon.site import MuonSettings, parse
from support.ansible import INVENTORIES, ROLES, load, playbook, recap, render

ROLE = ROLES / "training"
FIELDS = get_type_hints(MuonSettings)
FULL: dict[str, Any] = {
    "node_threshold": 6,
    "fabric_gbps": 3200,
    "link_gbytes_per_s": 900.0,
    "rank_tflops": 750.5,
    "fabric_latency_us": 8,
    "efficiency": 0.9,
}


def rendered(facts: dict[str, Any]) -> str:
    template = ROLE / "templates" / "muon.toml.j2"
    return render(template, role=ROLE, inventory=INVENTORIES / "sandbox", extra={"training_muon": facts})


def refused(facts: dict[str, Any]) -> bool:
    """Whether the role's own task refuses the facts before it touches a node."""
    from ansible.parsing.dataloader import DataLoader
    from ansible.template import Templar, trust_as_template

    (task,) = (t for t in load(ROLE / "tasks" / "look.yml") if "training_muon" in str(t))
    templar = Templar(loader=DataLoader(), variables={"training_muon": facts})
    that = task["ansible.builtin.assert"]["that"]
    return not all(templar.evaluate_conditional(trust_as_template(one)) for one in that)


def plain(done: subprocess.CompletedProcess[str]) -> str:
    """What a playbook printed, without Ansible's line breaks and quotes."""
    return re.sub(r"\s+", " ", done.stdout.replace("'", ""))


def test_the_inventory_may_state_what_the_optimizer_reads_and_nothing_else() -> None:
    options = declared_variables(ROLES)["training_muon"].spec["options"]
    kinds = {name: "int" if "int" in str(kind) else "float" for name, kind in FIELDS.items()}
    assert {name: option["type"] for name, option in options.items()} == kinds
    assert set(FULL) == set(kinds)


def test_what_the_inventory_states_is_what_the_optimizer_gets() -> None:
    assert parse(rendered(FULL)) == MuonSettings(**FULL)
    assert parse(rendered({"node_threshold": 0})) == MuonSettings(node_threshold=0)
    assert parse(rendered({})) == MuonSettings()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node_treshold = 3", "did you mean 'node_threshold'"),
        ("node_threshold = 3.5", r"muon\.toml\.node_threshold"),
        ("efficiency = 0", "efficiency 0.0: must be above 0"),
        ("fabric_gbps = inf", "not a finite number"),
        ("fabric_gbps = 1 Tbit", "not valid TOML"),
    ],
)
def test_a_spoilt_file_is_refused_with_its_key(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(text)


@pytest.mark.parametrize("name", sorted(FIELDS))
@pytest.mark.parametrize("value", [-1, 0, 1, float("inf"), float("nan")])
def test_the_role_refuses_the_figures_that_the_optimizer_would(name: str, value: float) -> None:
    # given a figure, does the optimizer take it from a file?
    if name == "node_threshold" and value not in {-1, 0, 1}:
        value = -2
    facts = {**FULL, name: value}
    try:
        parse(rendered(facts))
    except ConfigError:
        taken = False
    else:
        taken = True
    # then the role decides alike, before the file is written
    assert refused(facts) is not taken


def test_a_wrong_key_or_type_is_a_fault_of_the_inventory_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "hosts.yml").write_text(
        "all: {hosts: {a: }, vars: {training_muon: {node_treshold: 3, fabric_gbps: fast, rank_tflops: true}}}\n"
    )
    faults = inventory_faults(
        [str(tmp_path)],
        roles_dir=ROLES,
        removed_file=ROLES / "platform_validate" / "files" / "removed_variables.yml",
    )
    said = "\n".join(map(str, faults))
    assert "training_muon.node_treshold is not known; did you mean node_threshold?" in said
    assert "training_muon.fabric_gbps must be a number, not text" in said
    assert "training_muon.rank_tflops must be a number" in said


def test_the_role_writes_the_file_and_a_spoilt_one_fails_verify(tmp_path: Path) -> None:
    # given a node with the job installed: this test's own environment
    opt, etc = tmp_path / "opt", tmp_path / "etc"
    (opt / "training").mkdir(parents=True)
    (opt / "training" / "current").symlink_to(sys.prefix)
    facts = {
        "ansible_connection": "local",
        "ansible_python_interpreter": sys.executable,
        "kinemill_opt_dir": str(opt),
        "kinemill_etc_dir": str(etc),
        "training_torch": "torch >= 2",
        "training_find_links": ["/nowhere"],
        "training_interpreter": sys.executable,
        "training_pythons": [f"{sys.version_info[0]}.{sys.version_info[1]}"],
        "training_warm_up": False,
        "training_muon": FULL,
    }
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": {"localhost": facts}}}))
    play = {"name": "Role", "hosts": "all", "gather_facts": False, "roles": [str(ROLE)]}
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    call = ("--inventory", tmp_path / "hosts.yml", tmp_path / "play.yml")
    # when it is configured and verified
    done = playbook(*call, "--tags=training_configure,training_verify")
    # then the file is there, for everybody to read
    assert done.returncode == 0, done.stdout + done.stderr
    path = etc / "muon.toml"
    assert parse(path.read_text()) == MuonSettings(**FULL)
    assert path.stat().st_mode & 0o777 == 0o644
    # when it is spoilt, then verify says so
    path.write_text(path.read_text().replace("node_threshold", "node_treshold"))
    spoilt = playbook(*call, "--tags=training_verify")
    assert spoilt.returncode == 2, spoilt.stdout
    assert "did you mean node_threshold?" in plain(spoilt)
    # when a figure cannot be, then nothing is written
    before = path.read_text()
    wrong = playbook(*call, "--tags=training_configure", "-e", json.dumps({"training_muon": {"efficiency": 0}}))
    assert wrong.returncode == 2, wrong.stdout
    assert "each figure must be finite and above 0" in plain(wrong)
    assert recap(wrong.stdout)["changed"] == 0
    assert path.read_text() == before
