"""Slurm's daemons answer the cluster and nobody else; ssh answers everybody."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kinemill.control.sandbox.anchor import until
from kinemill.control.sandbox.box import Sandbox
from kinemill.control.sandbox.faults import stranger

REPO = Path(__file__).resolve().parents[3]
# A daemon of Slurm on each of these listens on all addresses.
GUARDED = [("ctl", 6817), ("ctl", 6819), ("n1", 6818)]
CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)"


@pytest.fixture(scope="module")
def box() -> Sandbox:
    return Sandbox.open(os.environ["KINEMILL_SANDBOX"])


@pytest.fixture(scope="module")
def knock(box: Sandbox) -> Iterator[Callable[[str, int], str]]:
    with stranger(box) as found:
        yield found


@pytest.mark.parametrize(("node", "port"), GUARDED)
def test_a_stranger_is_not_answered_and_a_node_is(
    box: Sandbox, knock: Callable[[str, int], str], node: str, port: int
) -> None:
    assert knock(node, port) == "silent"
    box.exec("n2", ["python3", "-c", CONNECT, box.address(node), str(port)])


def test_what_is_not_ours_is_open_to_a_stranger_as_it_was(knock: Callable[[str, int], str]) -> None:
    # (an answer may be late on a busy machine, and then looks like none)
    until("ssh answers", lambda: knock("ctl", 22) == "open", deadline_s=300)
    until("a closed port refuses", lambda: knock("ctl", 8080) == "refused", deadline_s=300)


def test_without_the_rules_a_stranger_would_come_in_and_a_flush_brings_them_back(
    box: Sandbox, knock: Callable[[str, int], str]
) -> None:
    box.exec("n2", ["systemctl", "stop", "kinemill-firewall"])
    until("slurmd answers a stranger", lambda: knock("n2", 6818) == "open", deadline_s=300)
    box.exec("n2", ["systemctl", "start", "kinemill-firewall"])
    assert knock("n2", 6818) == "silent"
    # what starts the system's own firewall flushes every table
    box.exec("n2", ["systemctl", "unmask", "nftables"])
    try:
        box.exec("n2", ["systemctl", "start", "nftables"])
        until("our rules", lambda: knock("n2", 6818) == "silent", deadline_s=300)
        box.exec("n2", ["nft", "list", "table", "inet", "filter"])
    finally:
        box.exec("n2", ["systemctl", "stop", "nftables"])
        box.exec("n2", ["systemctl", "reload", "kinemill-firewall"])
        box.exec("n2", ["systemctl", "mask", "nftables"])


def test_rules_that_nobody_confirms_are_taken_back_and_other_tables_stay(box: Sandbox) -> None:
    # given a table of somebody else's, and rules that are loaded on trial
    box.exec("n2", ["nft", "add table ip theirs; add chain ip theirs c"])
    folder = REPO / "roles" / "firewall"
    wanted = {
        "rules": box.exec("n2", ["cat", "/etc/kinemill/firewall.nft"]).stdout.replace("6820", "6821"),
        "unit": (folder / "files" / "kinemill-firewall.service").read_text(),
        "drop_in": (folder / "files" / "nftables.conf").read_text(),
        "ports": [6817],
        "subnets": ["10.77.0.0/24"],
        "undo_s": 10,
    }
    before = {
        name: box.exec("n2", ["cat", f"/etc/kinemill/{name}"]).stdout for name in ("firewall.nft", "firewall.loaded")
    }
    try:
        answer = module("n2", wanted)
        assert (answer["changed"], answer["on_trial"]) == (True, True)
        # when no new connection says that they may stay, then they go
        listed = ["nft", "list", "table", "inet", "kinemill"]
        until("taken back", lambda: box.exec("n2", listed, check=False).returncode != 0, deadline_s=300)
        box.exec("n2", ["nft", "list", "table", "ip", "theirs"])
        # and what would cut off ssh, or the cluster, is not even loaded
        assert "ssh listens on port 22" in module("n2", {**wanted, "ports": [22]})["msg"]
        assert "lie in no network" in module("n2", {**wanted, "subnets": ["10.78.0.0/24"]})["msg"]
        assert "nft --check" in module("n2", {**wanted, "rules": "table inet kinemill { chain c { what } }"})["msg"]
    finally:
        for name, text in before.items():
            box.exec("n2", ["tee", f"/etc/kinemill/{name}"], stdin=text)
        box.exec("n2", ["systemctl", "restart", "kinemill-firewall"])
        box.exec("n2", ["nft", "delete", "table", "ip", "theirs"])


def module(node: str, arguments: dict[str, object]) -> dict[str, object]:
    """What the role's module answers on a node."""
    command = ["ansible", node, "--inventory=inventories/sandbox", "--module-path=roles/firewall/library"]
    command += ["--module-name=kinemill_firewall", f"--args={json.dumps(arguments)}", "--one-line"]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=300, check=False)
    line = next(one for one in done.stdout.splitlines() if " => " in one)
    return dict(json.loads(line.split(" => ", 1)[1]))
