"""From bare images to a running cluster, by one playbook: the scenario `bare`, which is `make cluster`."""

from __future__ import annotations

from support.molecule import run_scenario


def test_bare_nodes_become_a_cluster_and_a_second_run_changes_nothing() -> None:
    """site.yml twice, then a look from outside, with a job and each verify on a broken part."""
    run_scenario("bare", "bookworm", run="make test online")
