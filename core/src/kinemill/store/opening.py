"""A store from its URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kinemill.errors import ConfigError
from kinemill.store.memory import MemoryStore

if TYPE_CHECKING:
    from kinemill.contracts.store import AsyncStore, Store
    from kinemill.store.config import Credentials
    from kinemill.store.retry import Retry

__all__ = ["open_async_store", "open_store"]

_memory: dict[str, MemoryStore] = {}


def open_store(
    url: str, *, credentials: Credentials | None = None, retry: Retry | None = None, timeout_s: float = 30.0
) -> Store:
    """The store at `url`. Nothing is sent yet, except that a folder is made for `file://`.

    Args:
        url: `s3://bucket/prefix?endpoint=http://host:port&region=...`, `file:///folder`, or `memory://name` (one
            store a name in this process).
        credentials: For S3; None means from the environment or the 0600 file that KINEMILL_S3_CREDENTIALS_FILE names.
        retry: Bounds on trying again.
        timeout_s: Of one request.

    Raises:
        ConfigError: An unknown scheme, a secret in the URL, or no credentials.
    """
    scheme = urlsplit(url).scheme
    if scheme == "s3":
        from kinemill.store.config import parse_s3_url
        from kinemill.store.s3 import S3Store

        return S3Store(parse_s3_url(url), credentials, retry=retry, timeout_s=timeout_s)
    if scheme == "file":
        from kinemill.store.files import FileStore

        return FileStore(_folder(url))
    if scheme == "memory":
        name = url.removeprefix("memory://").strip("/") or "memory"
        return _memory.setdefault(name, MemoryStore(name))
    raise ConfigError(f"store URL {url.rsplit('@', maxsplit=1)[-1]!r}: expected s3://, file:/// or memory://")


def open_async_store(url: str, *, credentials: Credentials | None = None, retry: Retry | None = None) -> AsyncStore:
    """The same store for event loops; arguments as for `open_store`."""
    if urlsplit(url).scheme == "s3":
        from kinemill.store.config import parse_s3_url
        from kinemill.store.s3 import AsyncS3Store

        return AsyncS3Store(parse_s3_url(url), credentials, retry=retry)
    from kinemill.store.aio import ThreadedAsyncStore

    return ThreadedAsyncStore(open_store(url))


def _folder(url: str) -> Path:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise ConfigError(f"{url!r}: a local store is file:///absolute/folder")
    return Path(unquote(parts.path))
