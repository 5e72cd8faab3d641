"""A store in a dictionary: the fake that passes the same contract tests as the real ones."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kinemill.contracts.store import ObjectMeta, Progress
from kinemill.errors import ConflictError, NotFoundError, TruncatedError
from kinemill.store.parallel import Lanes, download, filler

__all__ = ["MemoryStore"]


class MemoryStore:
    """`kinemill.contracts.Store` without a server; counts its requests in `requests`."""

    def __init__(self, name: str = "memory") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, ObjectMeta]] = {}
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        """`memory://<name>`."""
        return f"memory://{self._name}"

    def _find(self, op: str, key: str) -> tuple[bytes, ObjectMeta]:
        with self._lock:
            self.requests.append((op, key))
            found = self._objects.get(key)
        if found is None:
            raise NotFoundError(f"{self.url}: no object '{key}'")
        return found

    def get(self, key: str) -> bytes:
        """The whole object."""
        return self._find("get", key)[0]

    def get_range(self, key: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Exactly `length` bytes from `start`."""
        data, meta = self._find("get_range", key)
        if etag is not None and etag != meta.etag:
            raise ConflictError(f"{self.url}/{key}: the object changed (etag {meta.etag}, expected {etag})")
        if start < 0 or length < 0 or start + length > len(data):
            raise TruncatedError(f"{self.url}/{key}: bytes {start}..{start + length} of {len(data)}")
        return data[start : start + length]

    def get_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """One request a range."""
        return [self.get_range(key, start, length) for start, length in ranges]

    def head(self, key: str) -> ObjectMeta:
        """Size and etag."""
        return self._find("head", key)[1]

    def _store(self, key: str, data: bytes) -> ObjectMeta:
        etag = hashlib.sha256(data).hexdigest()[:32]
        meta = ObjectMeta(key, len(data), etag, time.time_ns())
        self._objects[key] = (bytes(data), meta)
        return meta

    def put_if_absent(self, key: str, data: bytes | Path) -> ObjectMeta:
        """Create; the first of racing callers wins."""
        content = data.read_bytes() if isinstance(data, Path) else data
        with self._lock:
            self.requests.append(("put", key))
            if key in self._objects:
                raise ConflictError(f"{self.url}/{key}: exists already")
            return self._store(key, content)

    def put_if_match(self, key: str, data: bytes, etag: str) -> ObjectMeta:
        """Replace while `etag` still holds."""
        with self._lock:
            self.requests.append(("put", key))
            found = self._objects.get(key)
            if found is None or found[1].etag != etag:
                raise ConflictError(f"{self.url}/{key}: changed or gone since etag {etag}")
            return self._store(key, data)

    def list(self, prefix: str = "") -> Iterator[ObjectMeta]:
        """In key order; a snapshot of the moment of the call."""
        with self._lock:
            self.requests.append(("list", prefix))
            found = [meta for key, (_, meta) in sorted(self._objects.items()) if key.startswith(prefix)]
        return iter(found)

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
        """Part by part, as the real stores do."""
        meta = self.head(key) if size_bytes is None else ObjectMeta(key, size_bytes, etag)
        fill = filler(lambda start, length: self.get_range(key, start, length, etag=etag))
        return download(Lanes(1), fill, meta, path, part_bytes=part_bytes, progress=progress)

    def delete(self, key: str) -> None:
        """Remove; a missing key is no error."""
        with self._lock:
            self.requests.append(("delete", key))
            self._objects.pop(key, None)
