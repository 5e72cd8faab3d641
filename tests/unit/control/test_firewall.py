"""The firewall is judged before it is loaded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kinemill.control.firewall import faults, parse
from kinemill.control.render import render_template
from kinemill.errors import ConfigError
from support.ansible import ROLES, load_module

PORTS = {"slurmctld": 6817, "mariadb": 3306}


def test_sound_rules_have_no_fault_and_say_what_they_guard() -> None:
    said: dict[str, Any] = {"firewall_subnets": ["10.20.0.0/16", "fd00:20::/64"], "firewall_also": ["192.0.2.7"]}
    assert faults(said["firewall_subnets"], also=said["firewall_also"], ports=PORTS) == []
    found = parse(render_template("firewall", "firewall.nft.j2", {**said, "firewall_ports": PORTS}))
    assert found["ports"] == ("3306", "6817")
    assert set(found["networks"]) == {"10.20.0.0/16", "fd00:20::/64", "192.0.2.7"}


@pytest.mark.parametrize(
    ("subnets", "said", "words"),
    [
        ([], {}, "firewall_subnets is empty"),
        (["0.0.0.0/0"], {}, "0.0.0.0/0 is everybody"),
        (["::/0"], {}, "is everybody"),
        (["10.20.0.1/16"], {}, "has host bits set; write it as"),
        (["head01"], {}, "'head01' does not appear to be"),
        (["10.0.0.0/8"], {"also": ["monitor"]}, "firewall_also: 'monitor'"),
        (["10.0.0.0/8"], {"ports": {}}, "firewall_ports is empty"),
        (["10.0.0.0/8"], {"ports": {"x": 70000}}, "x is 70000, which is no port"),
        (["10.0.0.0/8"], {"ports": {"ssh": 22}}, "by which ssh comes in"),
        (["10.0.0.0/8"], {"ports": {"x": 2222}, "ssh_port": "2222"}, "by which ssh comes in"),
    ],
)
def test_each_fault_is_told(subnets: list[str], said: dict[str, Any], words: str) -> None:
    (fault,) = faults(subnets, **{"ports": PORTS, **said})
    assert words in fault


def test_all_faults_come_at_once() -> None:
    assert len(faults(["0.0.0.0/0", "x"], also=["y"], ports={"ssh": 22})) == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("delete table inet kinemill", "flush ruleset", "touches what is not ours"),
        ("table inet kinemill {", "table inet filter {", "touches what is not ours"),
        ("counter drop", "counter drop\nflush set inet kinemill a", "flushes"),
        ("delete table inet kinemill\n", "", "begin with our own table and its removal"),
        ("policy accept", "policy drop", "policy must be accept"),
        ("3306, 6817", "22, 3306", "port of ssh"),
        ("tcp dport { 3306, 6817 } jump guarded", "", "guards no ports"),
        ("10.20.0.0/16", "0.0.0.0/0", "everybody"),
    ],
)
def test_a_template_that_would_do_harm_is_refused(old: str, new: str, words: str) -> None:
    text = render_template(
        "firewall", "firewall.nft.j2", {"firewall_subnets": ["10.20.0.0/16"], "firewall_ports": PORTS}
    )
    assert old in text
    with pytest.raises(ConfigError, match=words):
        parse(text.replace(old, new))


def test_what_the_node_itself_refuses() -> None:
    module = load_module(ROLES / "firewall" / "library" / "kinemill_firewall.py")
    shown = json.dumps(
        [
            {"ifname": "lo", "addr_info": [{"local": "127.0.0.1", "scope": "host"}]},
            {
                "ifname": "eth0",
                "addr_info": [{"local": "10.20.1.2", "scope": "global"}, {"local": "fe80::1", "scope": "link"}],
            },
        ]
    )
    assert module.addresses(shown) == ["10.20.1.2"]
    assert module.is_inside(["10.20.1.2"], ["fd00::/8", "10.20.0.0/16"])
    assert not module.is_inside(["10.20.1.2"], ["10.21.0.0/16"])
    assert module.ssh_ports("port 22\nport 2222\nportable yes\n") == {22, 2222}
