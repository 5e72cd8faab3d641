"""What points at a manifest: store, key, sha256 and size. Small, and all that ever gets pickled."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinemill.errors import ContractError, NotFoundError

if TYPE_CHECKING:
    from kinemill.contracts import Store

__all__ = ["ManifestRef", "resolve"]

_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class ManifestRef:
    """One immutable manifest file in a store.

    Attributes:
        store: URL of the store, such as `s3://corpus`; never holds a secret.
        key: Of the Arrow IPC file.
        sha256: Of the file, 64 hex digits; names the local copy.
        size_bytes: Of the file.
        rows: Rows in the file; -1 where the pointer does not say.
        etag: Sent as If-Match with each range; None leaves proof to the sha256 alone.
        parquet_key: The same rows as Parquet, for `remote_parquet`; None where none was exported.
        id: The manifest's id; empty for a bare file.
    """

    store: str
    key: str
    sha256: str
    size_bytes: int
    rows: int = -1
    etag: str | None = None
    parquet_key: str | None = None
    id: str = ""

    def __post_init__(self) -> None:
        """Refuse what would name a wrong local file."""
        if not _SHA256.fullmatch(self.sha256):
            raise ContractError(f"manifest {self.key}: sha256 {self.sha256!r} is not 64 lower-case hex digits")
        if self.size_bytes <= 0:
            raise ContractError(f"manifest {self.key}: size {self.size_bytes} bytes; an Arrow file is never empty")


def resolve(store: Store, name: str) -> ManifestRef:
    """The manifest `name` in `store`: an id, a `manifests/<id>` prefix, or the key of its `manifest.json`.

    One request. `manifest.json` is written last, so a manifest without it does not exist yet.

    Raises:
        NotFoundError: No such manifest, or one that is still being written.
        ContractError: A pointer that does not fit.
    """
    key = name if name.endswith(".json") else f"{name if '/' in name else 'manifests/' + name}/manifest.json"
    try:
        raw = store.get(key)
    except NotFoundError as exc:
        raise NotFoundError(
            f"{store.url}: no manifest '{name}' ({key} is not there; it is written last, by `kinemill manifest build`)"
        ) from exc
    return parse(raw, store_url=store.url, key=key)


def parse(raw: bytes, *, store_url: str, key: str) -> ManifestRef:
    """The pointer in `manifest.json`.

    Raises:
        ContractError: Not JSON, or a field is missing or wrong.
    """
    folder = key.rpartition("/")[0]
    try:
        told = json.loads(raw)
        data = str(told.get("key") or told["data"])
        parquet = told.get("parquet_key") or told.get("parquet")
        return ManifestRef(
            store=store_url,
            key=data if "/" in data else f"{folder}/{data}",
            sha256=str(told["sha256"]),
            size_bytes=int(told["size_bytes"]),
            rows=int(told["rows"]),
            etag=told.get("etag"),
            parquet_key=None if not parquet else parquet if "/" in str(parquet) else f"{folder}/{parquet}",
            id=str(told.get("id") or folder.rpartition("/")[2]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ContractError(f"{store_url}/{key}: not a manifest pointer ({type(exc).__name__}: {exc})") from exc
