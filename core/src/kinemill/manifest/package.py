"""A manifest in the object store: `manifests/<id>/data-<sha256>.arrow`, then `manifest.json`, put last.

`manifest.json` is created, never replaced: where it stands, the manifest is whole. The id follows from spec,
snapshot, seed and code version, so that building the same thing twice is found done.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kinemill import records
from kinemill.contracts import Store
from kinemill.errors import ConflictError, ContractError, CorruptError, NotFoundError
from kinemill.manifest.writer import WrittenManifest

__all__ = ["ManifestPackage", "find_manifest", "list_manifests", "manifest_key", "publish_manifest"]

_ID = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")


@dataclass(frozen=True, slots=True)
class ManifestPackage:
    """What `manifest.json` says; loaders read `key`, `sha256`, `size_bytes` and `rows`."""

    id: str
    name: str
    """The spec's."""
    spec_sha256: str
    snapshot_id: int
    """Of the warehouse table that was curated."""
    seed: int
    code_version: str
    """Of what decides the rows' order and the file's form."""
    rows: int = 0
    hours: float = 0.0
    corpus_bytes: int = 0
    """Of the objects that the rows point at."""
    splits: dict[str, int] = field(default_factory=dict)
    """Rows by split."""
    vendors: dict[str, int] = field(default_factory=dict)
    """Rows by vendor."""
    key: str = ""
    """Of the Arrow file."""
    spec_key: str = ""
    sha256: str = ""
    size_bytes: int = 0
    version: int = 1


def manifest_key(manifest_id: str, leaf: str = "manifest.json") -> str:
    """Key of a part of a manifest.

    Raises:
        ContractError: An id that cannot stand in a key.
    """
    if not _ID.fullmatch(manifest_id):
        raise ContractError(f"manifest id {manifest_id!r}: lower-case letters, digits, . _ - only, at most 100")
    return f"manifests/{manifest_id}/{leaf}"


def publish_manifest(
    store: Store, written: WrittenManifest, info: ManifestPackage, *, spec: str = ""
) -> ManifestPackage:
    """Put the file, its spec, and last its `manifest.json`.

    Args:
        store: The corpus.
        written: The finished file.
        info: What is known beside the file.
        spec: The spec's text, kept beside it.

    Returns:
        The package as it stands in the store; the same call again gives the same.

    Raises:
        ConflictError: The id stands for another content.
        CorruptError: The store holds other bytes under the file's key.
    """
    data_key = manifest_key(info.id, f"data-{written.sha256}.arrow")
    spec_key = manifest_key(info.id, f"spec-{hashlib.sha256(spec.encode()).hexdigest()[:12]}.yaml") if spec else ""
    package = replace(
        info,
        rows=written.rows,
        key=data_key,
        spec_key=spec_key,
        sha256=written.sha256,
        size_bytes=written.size_bytes,
    )
    _put(store, data_key, written)
    if spec:
        _put_text(store, spec_key, spec)
    text = records.dumps(package, indent=2)
    key = manifest_key(info.id)
    try:
        store.put_if_absent(key, text.encode())
    except ConflictError:
        stands = find_manifest(store, info.id)
        if stands.sha256 != package.sha256:
            raise ConflictError(
                f"{store.url}/{key} stands for other rows (sha256 {stands.sha256[:12]}..., now "
                f"{package.sha256[:12]}...): something that decides the rows changed without its version"
            ) from None
        return stands
    return package


def _put(store: Store, key: str, written: WrittenManifest) -> None:
    try:
        meta = store.put_if_absent(key, written.path)
    except ConflictError:
        meta = store.head(key)  # of a build that was killed before its manifest.json
    if store.head(key).size_bytes != written.size_bytes or meta.size_bytes != written.size_bytes:
        raise CorruptError(f"{store.url}/{key}: {meta.size_bytes} bytes in the store, {written.size_bytes} written")


def _put_text(store: Store, key: str, text: str) -> None:
    try:
        store.put_if_absent(key, text.encode())
    except ConflictError:
        if store.get(key) != text.encode():
            raise


def find_manifest(store: Store, manifest_id: str) -> ManifestPackage:
    """The package of that id.

    Raises:
        NotFoundError: None, or one that is still being written.
        ContractError: Its `manifest.json` is none.
    """
    key = manifest_key(manifest_id)
    try:
        data = store.get(key)
    except NotFoundError as exc:
        raise NotFoundError(f"{store.url}: no manifest '{manifest_id}' ({key} is written last)") from exc
    return records.loads(ManifestPackage, data, where=f"{store.url}/{key}")


def list_manifests(store: Store) -> Iterator[ManifestPackage]:
    """All whole manifests of a store, by id."""
    for meta in store.list("manifests/"):
        parts = meta.key.split("/")
        if len(parts) == 3 and parts[2] == "manifest.json":
            yield find_manifest(store, parts[1])
