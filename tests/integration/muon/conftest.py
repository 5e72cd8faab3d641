"""Fleets shared by all of this area's tests: starting one costs more than a case."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.muon import Fleet, fleet


@pytest.fixture(scope="session")
def four() -> Iterator[Fleet]:
    """Two nodes of two ranks."""
    with fleet(2, 2) as found:
        yield found


@pytest.fixture(scope="session")
def five() -> Iterator[Fleet]:
    """Nodes of three and two ranks."""
    with fleet(3, 2) as found:
        yield found
