"""Fixtures of the layer: real clusters."""

from __future__ import annotations

from support.cluster import clusters, pytest_runtest_makereport, slurm_cluster

__all__ = ["clusters", "pytest_runtest_makereport", "slurm_cluster"]
