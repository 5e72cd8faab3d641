#!/usr/bin/python3
"""Ansible module: check, write and load firewall rules, on trial until a new connection says that they may stay."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: kinemill_firewall
short_description: Load firewall rules on trial, and keep them
description:
  - Has nft check the rules, writes them and their unit, and loads them. A timer takes them back unless the module is
    called again with C(keep), which must come in over a new connection.
  - Only the table C(inet kinemill) is ever touched. What is loaded and written already is left alone.
author: kinemill
options:
  rules:
    description: The nft script.
    type: str
  unit:
    description: The systemd unit that loads it at boot.
    type: str
  drop_in:
    description: What is added to nftables.service, so that ours is loaded again after it flushed.
    type: str
  folder:
    description: Where the script goes.
    type: path
    default: /etc/kinemill
  ports:
    description: Ports that the script guards; refused where ssh listens on one.
    type: list
    elements: int
    default: []
  subnets:
    description: Networks of the cluster; refused where the node has no address in any.
    type: list
    elements: str
    default: []
  undo_s:
    description: Seconds after which the rules are taken back.
    type: int
    default: 120
  keep:
    description: Keep what is loaded.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Load
  kinemill_firewall:
    rules: "{{ lookup('ansible.builtin.template', 'firewall.nft.j2') }}"
    unit: "{{ lookup('ansible.builtin.file', 'kinemill-firewall.service') }}"
    drop_in: "{{ lookup('ansible.builtin.file', 'nftables.conf') }}"
    subnets: [10.20.0.0/16]
"""

NAME = "kinemill-firewall"
UNDO = f"{NAME}-undo"
TABLE = ["inet", "kinemill"]
UNITS = Path("/etc/systemd/system")
UNIT = UNITS / f"{NAME}.service"
DROP_IN = UNITS / "nftables.service.d" / "kinemill.conf"


def addresses(shown: str) -> list[str]:
    """Addresses in `ip -json address`, without those of the machine to itself."""
    return [
        one["local"]
        for link in json.loads(shown or "[]")
        for one in link.get("addr_info", [])
        if one.get("scope") == "global" and "local" in one
    ]


def is_inside(found: list[str], subnets: list[str]) -> bool:
    """Whether any address lies in any network."""
    networks = [ipaddress.ip_network(subnet) for subnet in subnets]
    return any(ipaddress.ip_address(address) in network for address in found for network in networks)


def ssh_ports(settings: str) -> set[int]:
    """Ports in `sshd -T`."""
    words = [line.split() for line in settings.splitlines()]
    return {int(word[1]) for word in words if len(word) == 2 and word[0] == "port" and word[1].isdigit()}


def write(path: Path, content: str) -> bool:
    """Write a file that root alone may change; True where it differed.

    Raises:
        ValueError: Something else is in its place.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        raise ValueError(f"{path} is no ordinary file")
    if path.is_file() and path.read_text(encoding="utf-8") == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    with os.fdopen(fd, "w", encoding="utf-8") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())
    temporary.replace(path)
    return True


class Firewall:
    """The node's firewall as one run sees it.

    Args:
        module: The module that runs.
    """

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.folder = Path(module.params["folder"])
        self.script = self.folder / "firewall.nft"
        self.record = self.folder / "firewall.loaded"

    def run(self, *command: str, check: bool = True) -> tuple[int, str, str]:
        """Run a program; fail with what it said."""
        status, output, said = self.module.run_command(list(command), handle_exceptions=False)
        if check and status != 0:
            self.module.fail_json(msg=f"{' '.join(command)}: exit {status}: {(said or output).strip()[-500:]}")
        return status, output, said

    def fingerprint(self) -> str:
        """Sha256 of the table as it is loaded, without counts; empty where it is not."""
        status, shown, _ = self.run("nft", "--stateless", "list", "table", *TABLE, check=False)
        return hashlib.sha256(shown.encode()).hexdigest() if status == 0 else ""

    def kept(self) -> str:
        """The fingerprint that was kept."""
        return self.record.read_text(encoding="utf-8").strip() if self.record.is_file() else ""

    def is_active(self, unit: str) -> bool:
        """Whether a unit runs."""
        return self.run("systemctl", "is-active", "--quiet", unit, check=False)[0] == 0

    def refuse(self, ports: list[int], subnets: list[str]) -> None:
        """Fail where the rules would cut something off that must come in."""
        if shutil.which("nft") is None:
            self.module.fail_json(msg="nft is not here; install nftables, or put firewall into vendor_provides")
        found = addresses(self.run("ip", "-json", "address")[1])
        if not is_inside(found, subnets):
            self.module.fail_json(
                msg=f"this node's addresses ({', '.join(found) or 'none'}) lie in no network of firewall_subnets "
                f"({', '.join(subnets)}): the rest of the cluster would be cut off from it; add its network"
            )
        cut = sorted(ssh_ports(self.run("sshd", "-T", check=False)[1]) & set(ports))
        if cut:
            self.module.fail_json(
                msg=f"ssh listens on port {cut[0]}, which firewall_ports guards; take it off, or nobody gets in again"
            )

    def load(self, rules: str, unit: str, drop_in: str, undo_s: int) -> dict[str, Any]:
        """Check, write and load, unless all of it is so already."""
        trial = self.folder / f".firewall.{secrets.token_hex(4)}"
        write(trial, rules)
        try:
            self.run("nft", "--check", "--file", str(trial))
        finally:
            trial.unlink()
        wanted = {self.script: rules, UNIT: unit, DROP_IN: drop_in}
        current = all(path.is_file() and path.read_text(encoding="utf-8") == text for path, text in wanted.items())
        current = current and self.fingerprint() == self.kept() != ""
        if current and self.is_active(NAME) and not self.is_active(f"{UNDO}.timer"):
            return {"changed": False, "on_trial": False}
        if not self.module.check_mode:
            self.record.unlink(missing_ok=True)
            for path, text in wanted.items():
                write(path, text)
            self.run("systemctl", "stop", f"{UNDO}.timer", check=False)
            # Before the rules, not after: whatever happens then, the node opens up again.
            undo = ["nft", "delete", "table", *TABLE]
            self.run("systemd-run", "--quiet", f"--unit={UNDO}", f"--on-active={undo_s}", "--collect", *undo)
            self.run("nft", "--file", str(self.script))
        return {"changed": True, "on_trial": not self.module.check_mode}

    def keep(self) -> dict[str, Any]:
        """Keep what is loaded, now and at boot."""
        if not self.module.check_mode:
            self.run("systemctl", "daemon-reload")
            self.run("systemctl", "enable", "--quiet", NAME)
            self.run("systemctl", "restart", NAME)
            write(self.record, self.fingerprint() + "\n")
            self.run("systemctl", "stop", f"{UNDO}.timer")
        return {"changed": True}


def main() -> None:
    """Entry."""
    module = AnsibleModule(
        argument_spec={
            "rules": {"type": "str"},
            "unit": {"type": "str"},
            "drop_in": {"type": "str"},
            "folder": {"type": "path", "default": "/etc/kinemill"},
            "ports": {"type": "list", "elements": "int", "default": []},
            "subnets": {"type": "list", "elements": "str", "default": []},
            "undo_s": {"type": "int", "default": 120},
            "keep": {"type": "bool", "default": False},
        },
        required_if=[("keep", False, ("rules", "unit", "drop_in"))],
        supports_check_mode=True,
    )
    firewall = Firewall(module)
    wanted = module.params
    try:
        if wanted["keep"]:
            module.exit_json(**firewall.keep())
        firewall.refuse(wanted["ports"], wanted["subnets"])
        module.exit_json(**firewall.load(wanted["rules"], wanted["unit"], wanted["drop_in"], wanted["undo_s"]))
    except (OSError, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
