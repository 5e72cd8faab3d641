"""The agents from one release to the next and back, then every chore of operation: the scenario `upgrade`."""

from __future__ import annotations

import pytest

from support.molecule import run_scenario


@pytest.mark.full("cluster")
def test_agents_go_up_and_back_and_every_chore_of_operation_works() -> None:
    """site.yml twice with the release before, then each playbook of playbooks/adhoc."""
    run_scenario("upgrade", "bookworm", timeout_s=5000)
