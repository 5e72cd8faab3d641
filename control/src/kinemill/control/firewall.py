"""Judges the firewall on the control host: nobody else in, the cluster not out, and ssh never cut off."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

from kinemill.errors import ConfigError

__all__ = ["TABLE", "faults", "parse"]

TABLE = "inet kinemill"
_SSH_PORT = 22


def faults(
    subnets: Sequence[str], *, also: Sequence[str] = (), ports: Mapping[str, int], ssh_port: int | str = _SSH_PORT
) -> list[str]:
    """What is wrong with what an inventory says about the firewall.

    Args:
        subnets: Networks of the cluster.
        also: Further addresses or networks that may come in.
        ports: Name of what listens -> guarded port.
        ssh_port: The port by which Ansible comes in.

    Returns:
        One sentence each, with what to do; empty where it is sound.
    """
    found: list[str] = []
    if not subnets:
        found.append(
            "firewall_subnets is empty, so the nodes would not reach each other; name the cluster's networks, "
            "or put firewall into vendor_provides"
        )
    for variable, networks in (("firewall_subnets", subnets), ("firewall_also", also)):
        for network in networks:
            found += [f"{variable}: {text}" for text in _network_faults(network)]
    if not ports:
        found.append("firewall_ports is empty; leave it out, or put firewall into vendor_provides")
    for name, port in ports.items():
        if not str(port).isdigit() or not 0 < int(port) < 2**16:
            found.append(f"firewall_ports: {name} is {port!r}, which is no port")
        elif int(port) in {_SSH_PORT, int(ssh_port)}:
            found.append(
                f"firewall_ports: {name} is {port}, by which ssh comes in; take it off, or nobody gets in again"
            )
    return found


def _network_faults(network: str) -> list[str]:
    try:
        found = ipaddress.ip_network(network)
    except ValueError as error:
        return [f"{error}; write it as 10.20.0.0/16 or fd00:20::/64"]
    return [f"{network} is everybody; name the cluster's own networks"] if found.prefixlen == 0 else []


def parse(text: str) -> Mapping[str, tuple[str, ...]]:
    """Read rendered rules strictly.

    Args:
        text: An nft script.

    Returns:
        `ports` and `networks`.

    Raises:
        ConfigError: It touches another table, flushes, drops by default, guards ssh, or lets everybody in.
    """
    lines = [line for raw in text.splitlines() if (line := raw.split("#", 1)[0].strip())]
    others = [
        line for line in lines if re.match(r"(delete |add |flush )?(table|ruleset)\b", line) and TABLE not in line
    ]
    if others:
        raise ConfigError(f"firewall: touches what is not ours: {others[0]!r}")
    if any("flush" in line for line in lines):
        raise ConfigError("firewall: flushes; delete our own table instead")
    if lines[:2] != [f"table {TABLE}", f"delete table {TABLE}"]:
        raise ConfigError(
            f"firewall: must begin with our own table and its removal, so that it loads in one step: {TABLE}"
        )
    if not any(line.endswith("policy accept;") for line in lines) or "policy drop" in text:
        raise ConfigError("firewall: the policy must be accept; what is not ours is not ours to drop")
    guarded = re.findall(r"tcp dport \{ ([\d, ]+) \} jump guarded", text)
    if len(guarded) != 1:
        raise ConfigError("firewall: guards no ports, or in more than one place")
    ports = tuple(guarded[0].split(", "))
    if str(_SSH_PORT) in ports:
        raise ConfigError("firewall: guards the port of ssh")
    networks = tuple(word for found in re.findall(r"elements = \{ (.*?) \}", text) for word in found.split(", "))
    wrong = [fault for network in networks for fault in _network_faults(network)]
    if wrong:
        raise ConfigError(f"firewall: {wrong[0]}")
    return {"ports": ports, "networks": networks}
