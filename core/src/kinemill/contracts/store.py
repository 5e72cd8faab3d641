"""The object store as every part sees it: immutable keys, ranged reads, conditional writes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

__all__ = ["AsyncStore", "ObjectMeta", "Progress", "Store"]

Progress: TypeAlias = Callable[[int, int], object]
"""Called with (bytes so far, of all); from several threads, but one at a time."""


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """What a store says of an object without sending it."""

    key: str
    size_bytes: int
    etag: str | None = None
    modified_ns: int | None = None
    """Last change, ns since the epoch, as precise as the store is."""


@runtime_checkable
class Store(Protocol):
    """A bucket and prefix. Implementations are thread-safe, and usable again after a fork or a spawn.

    Every call may raise `UnavailableError` after its bounded retries, and `NotFoundError` for a
    key that is not there.
    """

    @property
    def url(self) -> str:
        """Such as `s3://corpus/prefix`; never holds a secret."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object."""
        ...

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`, in one request.

        Raises:
            TruncatedError: The object ends before `start + length`.
            ConflictError: `etag` is given and the object has another.
        """
        ...

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """`get_range` for each `(start, length)`, in parallel; one request each, none merged."""
        ...

    def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        ...

    def put_if_absent(self, key: str, data: bytes | Path) -> ObjectMeta:
        """Create `key` from bytes or a local file; nothing is ever overwritten.

        Raises:
            ConflictError: The key exists.
        """
        ...

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectMeta:
        """Replace `key` only while it has `etag` (pointers only; content has new keys).

        Raises:
            ConflictError: Another etag, or the key is gone.
        """
        ...

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """All objects whose key starts with `prefix`, in key order, page by page."""
        ...

    def download(
        self,
        key: str,
        path: Path,
        *,
        etag: str | None = None,
        size_bytes: int | None = None,
        part_bytes: int = 8 << 20,
        progress: Progress | None = None,
    ) -> ObjectMeta:
        """The object to the local file `path` by parallel ranged reads, straight into place.

        The caller names a temporary file and renames it. ceil(size / part_bytes) requests, plus one
        `head` where `size_bytes` is not given. `progress` is told of each part that is written.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove an object; only `gc` and `purge` call this. A missing key is no error."""
        ...


@runtime_checkable
class AsyncStore(Protocol):
    """The reading half of `Store` for event loops; same errors."""

    async def get(self, key: str) -> bytes:
        """The whole object."""
        ...

    async def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`, in one request."""
        ...

    async def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        ...

    def list(self, prefix: str = "") -> AsyncIterator[ObjectMeta]:
        """All objects whose key starts with `prefix`, in key order."""
        ...
