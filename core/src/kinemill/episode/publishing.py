"""Put a finished episode into a store under its content's key."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

from kinemill.contracts.episode import Receipt, Rendition
from kinemill.contracts.keys import episode_key
from kinemill.contracts.store import Store
from kinemill.errors import ConflictError, StateError
from kinemill.store.files import fsync_folder

__all__ = ["publish", "publish_file"]


def publish_file(finished: Path, target: Path) -> None:
    """Give a finished file its name on its own disk, for good.

    Raises:
        FileExistsError: Something stands there.
    """
    try:
        os.link(finished, target)
    except FileExistsError:
        raise
    except OSError:  # a disk without hard links, as robots carry: take the name first, then put the file there
        target.open("xb").close()
        finished.replace(target)
    fsync_folder(target.parent)


def publish(store: Store, path: Path, receipt: Receipt) -> Rendition:
    """Create the object; the same content published twice is one object.

    Args:
        store: Where to.
        path: The file that `receipt` describes.
        receipt: From the writer.

    Raises:
        StateError: The file is not that of the receipt (any more): its size or its sha256 differs.
        ConflictError: Another object of another size stands under the key.
    """
    size = path.stat().st_size
    if size != receipt.size_bytes:
        raise StateError(f"{path}: {size} bytes, its receipt says {receipt.size_bytes}; write it again")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != receipt.sha256:
        raise StateError(f"{path}: sha256 {found}, its receipt says {receipt.sha256}; write it again")
    key = episode_key(uuid.UUID(receipt.episode_id), receipt.profile, receipt.sha256)
    try:
        meta = store.put_if_absent(key, path)
    except ConflictError:
        meta = store.head(key)
        if meta.size_bytes != receipt.size_bytes:
            raise
    return Rendition(receipt.episode_id, receipt.profile, key, receipt, meta.etag)
