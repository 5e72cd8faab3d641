"""Any synchronous store for event loops: each call in a thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from kinemill.contracts.store import ObjectMeta, Store

__all__ = ["ThreadedAsyncStore"]


class ThreadedAsyncStore:
    """`kinemill.contracts.AsyncStore` around a `Store` that has no async client."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def url(self) -> str:
        """The store's."""
        return self._store.url

    async def get(self, key: str) -> bytes:
        """The whole object."""
        return await asyncio.to_thread(self._store.get, key)

    async def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`, in one request."""
        return await asyncio.to_thread(self._store.get_range, key, start, length, etag=etag)

    async def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        return await asyncio.to_thread(self._store.head, key)

    async def list(self, prefix: str = "") -> AsyncIterator[ObjectMeta]:
        """In key order."""
        for meta in await asyncio.to_thread(lambda: list(self._store.list(prefix))):
            yield meta
