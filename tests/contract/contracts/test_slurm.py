"""The Slurm contract on the fake."""

from __future__ import annotations

import pytest

from kinemill.clock import FakeClock
from kinemill.slurm.fake import FakeSlurm
from support.slurm_contract import SlurmContract


class TestFakeSlurm(SlurmContract):
    """The fake, which is both sides."""

    @pytest.fixture
    def fake(self) -> FakeSlurm:
        """Two idle nodes."""
        return FakeSlurm(FakeClock())

    @pytest.fixture
    def admin(self, fake: FakeSlurm) -> FakeSlurm:
        """As an administrator."""
        return fake

    @pytest.fixture
    def jobs(self, fake: FakeSlurm) -> FakeSlurm:
        """As a submitter."""
        return fake
