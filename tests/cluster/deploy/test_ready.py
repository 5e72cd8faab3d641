"""On a vendor's running Slurm: the scenario `ready`, with nothing installed and no file of the vendor's changed."""

from __future__ import annotations

import pytest

from support.molecule import run_scenario


@pytest.mark.full("cluster")
def test_a_vendors_slurm_is_added_to_and_a_second_run_changes_nothing_of_anybodys() -> None:
    """site.yml twice, the second time on a cluster in use, then a look from outside."""
    run_scenario("ready", "trixie-slurm", "bookworm", timeout_s=5000)
