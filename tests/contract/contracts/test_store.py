"""The store contract on the fake; the real backends run the same suite from `support.store_contract`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kinemill.contracts import Store
from kinemill.store.memory import MemoryStore
from support.store_contract import StoreContract


class TestMemoryStore(StoreContract):
    """The fake."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[Store]:
        """A fresh, empty store."""
        del tmp_path
        return MemoryStore()
