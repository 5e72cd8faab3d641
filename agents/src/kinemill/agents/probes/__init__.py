"""What is read from the node. One file a probe; each runs in a killable child and only emits facts.

A probe has a name and a `read(ctx, emit)`; every `emit(key, value)` reaches the parent at once, so
what was read before a hang or a kill is kept, and only what is missing is unknown.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, Protocol

from kinemill.agents.context import Context

__all__ = ["Emit", "Probe", "load_probe"]

Emit = Callable[[str, Any], None]
"""Send one fact: key and JSON-ready value."""


class Probe(Protocol):
    """A module in this package."""

    def read(self, ctx: Context, emit: Emit) -> None:
        """Read, and emit each fact as soon as it is known."""
        ...


def load_probe(name: str) -> Probe:
    """Import one probe; called in the child, so that a broken library cannot hurt the agent."""
    module: Any = importlib.import_module(f"kinemill.agents.probes.{name}")
    probe: Probe = module
    return probe
