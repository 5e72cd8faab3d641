"""`kinemill load`: pull, probe, measure and show what a training job would read."""

from __future__ import annotations

from kinemill.loaders.commands.group import load

__all__ = ["load"]
