"""What the probes read, as checks see it; and what identifies this node and this boot.

A fact that was not read is None, never a guess. A GPU value is a `Reading`: a value, or the name
of the error that NVML gave instead.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click

from kinemill.contracts.exits import ExitCode

__all__ = ["Facts", "Gpu", "NodeFacts", "Reading", "node_facts", "print_facts"]


@dataclass(frozen=True, slots=True)
class Reading:
    """One NVML value, or why there is none."""

    value: Any = None
    error: str | None = None

    @property
    def not_supported(self) -> bool:
        """True where the GPU has no such thing, which is no fault."""
        return self.error in ("NotSupported", "NoSuchDevice")

    @classmethod
    def of(cls, raw: Any) -> Reading:
        """From a probe's `{"v": ...}` or `{"e": ...}`; anything else is an error of its own."""
        if isinstance(raw, Mapping) and "v" in raw:
            return cls(raw["v"])
        if isinstance(raw, Mapping) and isinstance(raw.get("e"), str):
            return cls(None, raw["e"])
        return cls(None, "NotRead")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU's readings by name."""

    index: int
    readings: dict[str, Reading]

    def get(self, name: str) -> Reading:
        """The reading, or an error `NotRead`."""
        return self.readings.get(name, Reading(None, "NotRead"))


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything the probes emitted, and how each probe ended."""

    values: dict[str, Any] = field(default_factory=dict)
    ended: dict[str, str] = field(default_factory=dict)
    """Probe -> `ok`, `timeout`, `died(...)`, `unreaped`, or `not run`."""
    age_s: dict[str, float] = field(default_factory=dict)
    """Probe -> age of its facts in seconds; 0 where freshly read."""
    spent_s: dict[str, float] = field(default_factory=dict)

    def get(self, key: str) -> Any:
        """The fact, or None where it was not read."""
        return self.values.get(key)

    def how(self, probe: str) -> str:
        """How the probe ended, for a detail text."""
        return self.ended.get(probe, "not run")

    def reading(self, key: str) -> Reading:
        """An NVML fact that is not a GPU's own."""
        return Reading.of(self.values.get(key))

    def gpus(self) -> list[Gpu]:
        """All GPUs that were reached, in index order."""
        found: list[Gpu] = []
        for key, raw in self.values.items():
            if key.startswith("gpu.") and isinstance(raw, Mapping):
                readings = {k: Reading.of(v) for k, v in raw.items() if k != "index"}
                found.append(Gpu(int(key.removeprefix("gpu.")), readings))
        return sorted(found, key=lambda g: g.index)


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
