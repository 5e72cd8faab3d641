"""Object stores behind `kinemill.contracts.Store`. Importing this loads no client library."""

from __future__ import annotations

from kinemill.store.memory import MemoryStore
from kinemill.store.opening import open_async_store, open_store

__all__ = ["MemoryStore", "open_async_store", "open_store"]
