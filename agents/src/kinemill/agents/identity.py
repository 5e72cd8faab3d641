"""What identifies this node and this boot: `kinemill node facts`."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from kinemill.contracts.exits import ExitCode

__all__ = ["NodeFacts", "node_facts", "node_name", "print_facts"]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Identity of a node."""

    hostname: str
    boot_id: str | None
    """/proc/sys/kernel/random/boot_id: what "since boot" means everywhere."""
    kernel: str
    cpus: int | None
    memory_bytes: int | None
    python: str


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def node_facts(root: Path = Path("/")) -> NodeFacts:
    """Read the identity below `root` (another root is a test bed's stand-in)."""
    memory = None
    for line in (_read(root / "proc/meminfo") or "").splitlines():
        words = line.split()
        if words[:1] == ["MemTotal:"] and len(words) == 3 and words[1].isdigit():
            memory = int(words[1]) * 1024
    return NodeFacts(
        hostname=platform.node(),
        boot_id=_read(root / "proc/sys/kernel/random/boot_id"),
        kernel=platform.release(),
        cpus=os.cpu_count(),
        memory_bytes=memory,
        python=platform.python_version(),
    )


def print_facts(facts: NodeFacts, *, as_json: bool) -> int:
    """Print `facts`; the exit code says whether all could be read."""
    data = asdict(facts)
    if as_json:
        click.echo(json.dumps(data))
    else:
        for name, value in data.items():
            click.echo(f"{name:<13} {'(could not be read)' if value is None else value}")
    return int(ExitCode.FINDING if None in data.values() else ExitCode.OK)


def node_name(stated: str = "") -> str:
    """This node's name in Slurm: the stated one, else what slurmd says, else the host name up to its first dot."""
    return stated or os.environ.get("SLURMD_NODENAME") or platform.node().split(".", 1)[0]
