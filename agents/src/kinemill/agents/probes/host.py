"""Counts what the kernel sees of the node itself: CPUs and memory."""

from __future__ import annotations

import re

from kinemill.agents.context import Context
from kinemill.agents.probes import Emit

__all__ = ["parse_cpu_list", "read"]


def parse_cpu_list(text: str) -> int:
    """How many CPUs `0-3,8` names.

    Raises:
        ValueError: Not such a list.
    """
    total = 0
    for part in text.strip().split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part)
        if match is None:
            raise ValueError(f"'{text[:40]}' is not a CPU list")
        first = int(match[1])
        total += int(match[2] or first) - first + 1
    return total


def read(ctx: Context, emit: Emit) -> None:
    """Emit `host.cpus_online` and `host.memory_mb`."""
    try:
        emit("host.cpus_online", parse_cpu_list(ctx.path("/sys/devices/system/cpu/online").read_text("ascii")))
    except (OSError, ValueError):
        emit("host.cpus_online", None)
    try:
        memory = re.search(r"^MemTotal:\s+(\d+) kB", ctx.path("/proc/meminfo").read_text("ascii"), re.MULTILINE)
        emit("host.memory_mb", int(memory[1]) // 1024 if memory else None)
    except (OSError, UnicodeDecodeError):
        emit("host.memory_mb", None)
