"""The role scenarios of molecule/, each with idempotence and its own look from outside.

Those of the whole site have tests of their own in tests/cluster/deploy.
"""

from __future__ import annotations

import pytest

from support.ansible import REPO
from support.molecule import run_scenario

SITES = {path.stem.removeprefix("test_") for path in (REPO / "tests" / "cluster" / "deploy").glob("test_*.py")}
SCENARIOS = sorted({path.parent.name for path in (REPO / "molecule").glob("*/molecule.yml")} - SITES)


@pytest.mark.full("cluster")
@pytest.mark.parametrize("name", SCENARIOS)
def test_scenario(name: str) -> None:
    run_scenario(name)
