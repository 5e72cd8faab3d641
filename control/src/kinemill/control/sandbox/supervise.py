"""Keeps one node: boots it, boots it again when it asks for a reboot, ends when it is switched off.

nspawn exits with 133 when the node's own systemd asked for a reboot; every other end is a power-off or a power cut.
Run as `python -m kinemill.control.sandbox.supervise ID NODE` inside the sandbox's namespaces.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

from kinemill.control.sandbox import standins
from kinemill.control.sandbox.names import STAND_INS, Places

__all__ = ["main", "nspawn_command"]

_REBOOT = 133


def nspawn_command(places: Places, node: str, binds: list[str]) -> list[str]:
    """The nspawn command line of a node.

    Args:
        places: The sandbox's places.
        node: The node's name.
        binds: Further `--bind=` and `--bind-ro=` options.
    """
    folder = places.node(node)
    return [
        "/usr/bin/systemd-nspawn",
        *("--quiet", "--register=no", "--keep-unit", "--boot", "--console=pipe"),
        *("--machine", f"kms{places.id}-{node}", f"--hostname={node}", "--directory", str(folder / "root")),
        *("--link-journal=no", "--resolv-conf=off", "--timezone=off"),
        f"--network-namespace-path={folder / 'net'}",
        # Its network namespace is its own, so its firewall may be too.
        "--capability=CAP_NET_ADMIN",
        f"--bind={places.shared}:/shared",
        f"--bind-ro={folder / 'stand-ins'}:{STAND_INS}",
        *binds,
    ]


def main(arguments: list[str]) -> int:
    """Entry; ends when the node does."""
    places, node = Places(int(arguments[0])), arguments[1]
    folder = places.node(node)
    record = json.loads((folder / "node.json").read_text(encoding="utf-8"))
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        # The payload gets a cgroup2 of its own whatever this machine uses, and nothing of ours is moved.
        "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY": "1",
        "SYSTEMD_NSPAWN_LOCK": "0",
    }
    status = _REBOOT
    while status == _REBOOT:
        standins.boot(folder / "stand-ins")
        nspawn = subprocess.Popen(
            nspawn_command(places, node, record["binds"]), stdin=subprocess.DEVNULL, env=environment, cwd="/"
        )
        temporary = folder / "nspawn.pid.tmp"
        temporary.write_text(f"{nspawn.pid}\n", encoding="ascii")
        temporary.replace(folder / "nspawn.pid")
        status = nspawn.wait()
        print(f"--- node {node}: nspawn ended with {status}", flush=True)
    (folder / "nspawn.pid").unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    os.umask(0o022)
    raise SystemExit(main(sys.argv[1:]))
