"""Starts a run's ranks on this node with torchrun, restarts them in place, and says in one exit code how it ended."""

from __future__ import annotations

from kinemill.training.launcher.torchrun import LaunchPlan, LaunchResult, launch

__all__ = ["LaunchPlan", "LaunchResult", "launch"]
