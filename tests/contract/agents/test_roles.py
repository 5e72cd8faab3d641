"""Facts of an inventory, rendered by role node_agents, are what the agents load; units and hooks name real commands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from kinemill.agents.hook import CONTEXTS
from kinemill.agents.hooks import hook_path
from kinemill.agents.requests import NAME
from kinemill.agents.settings import AgentsSettings, Hardware, parse
from kinemill.agents.units import units_dir
from kinemill.control.render import render_template
from kinemill.errors import ConfigError

FACTS: dict[str, Any] = {
    "sku": "h200-8",
    "gpus": 8,
    "gpu_uuids": ["GPU-1", "GPU-2"],
    "cpus": 192,
    "memory_mb": 2_000_000,
    "mounts": ["/shared", '/odd "name" \\ with ] = #'],
    "scratch_dirs": ["/scratch"],
    "ethernet": ["eth0"],
    "infiniband_ports": 8,
    "nvme_devices": 4,
    "mig": False,
    "container_command": ["enroot", "version"],
    "slurm_conf": "/etc/slurm/slurm.conf",
    "slurm_conf_sha256": "ab" * 32,
}


def rendered(**variables: Any) -> AgentsSettings:
    return parse(render_template("node_agents", "agents.toml.j2", {"node_agents_slurm_name": "n1", **variables}))


def test_every_fact_of_an_inventory_reaches_the_agents() -> None:
    assert set(FACTS) == set(Hardware.__slots__)
    settings = rendered(
        node_agents_hardware=FACTS,
        node_agents_disabled_checks=["gpu.pcie"],
        node_agents_xid_actions={109: "reboot"},
        node_agents_textfile_dir="/var/lib/node_exporter",
    )
    assert settings.hardware == Hardware(**{k: tuple(v) if isinstance(v, list) else v for k, v in FACTS.items()})
    assert settings.checks.disabled == ("gpu.pcie",)
    assert settings.checks.xid_actions == {"109": "reboot"}
    assert (settings.node_name, settings.textfile_dir) == ("n1", Path("/var/lib/node_exporter"))


def test_an_inventory_that_states_nothing_judges_nothing_and_loads() -> None:
    assert rendered().hardware == Hardware()


@pytest.mark.parametrize("facts", [{"gpu": 8}, {"sku": "h300-8"}, {"gpus": "eight"}, {"slurm_conf": "/x"}])
def test_a_wrong_fact_is_refused_before_a_node_sees_it(facts: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        rendered(node_agents_hardware=facts)


def test_the_role_declares_every_fact_that_the_agents_know() -> None:
    import yaml

    specs = Path(__file__).resolve().parents[3] / "roles" / "node_agents" / "meta" / "argument_specs.yml"
    options = yaml.safe_load(specs.read_text())["argument_specs"]["main"]["options"]
    assert set(options["node_agents_hardware"]["options"]) == set(Hardware.__slots__)


def test_units_and_hooks_call_what_there_is() -> None:
    texts = [p.read_text() for p in units_dir().iterdir() if p.suffix in (".service", ".timer", ".socket")]
    texts += [hook_path(name).read_text() for name in ("prolog", "epilog", "healthcheck")]
    called = {m for text in texts for m in re.findall(r"kinemill\.agents\.hook (\w+)", text)}
    assert called == {"prolog", "epilog", "periodic", "boot"}
    assert called <= set(CONTEXTS)
    units = {p.name for p in units_dir().iterdir()}
    (socket,) = re.findall(r"ListenDatagram=(\S+)", (units_dir() / "kinemill-node-ask.socket").read_text())
    assert socket == str(AgentsSettings().run_dir / NAME)
    assert {"kinemill-node-ask.socket", "kinemill-node-ask.service", "kinemill-node-check.timer"} <= units


@pytest.mark.parametrize("name", ["prolog", "epilog", "healthcheck"])
def test_the_shims_differ_only_in_their_name_and_context(name: str) -> None:
    context = {"healthcheck": "periodic"}.get(name, name)
    own = hook_path(name).read_text()
    assert own.replace(name, "X").replace(f"hook {context}", "hook X") == hook_path("prolog").read_text().replace(
        "prolog", "X"
    )
