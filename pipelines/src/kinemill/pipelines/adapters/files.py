"""First looks at a file, and what every adapter says about one that is no recording at all."""

from __future__ import annotations

import re
from pathlib import Path

from kinemill.pipelines.adapters.base import Finding, Level

__all__ = ["head_finding", "inside", "link_target_size"]

_LFS = b"version https://git-lfs"


def link_target_size(head: bytes) -> int | None:
    """The size that a Git LFS pointer names, or None where `head` is no pointer."""
    if not head.startswith(_LFS):
        return None
    found = re.search(rb"^size (\d{1,19})$", head, re.MULTILINE)
    return int(found[1]) if found else -1


def head_finding(path: Path) -> Finding | None:
    """Why `path` cannot be a recording, from its first bytes; None where they do not tell."""
    with path.open("rb") as file:
        head = file.read(512)
    if not head:
        return Finding("empty_file", Level.FAIL, f"{path.name} has no bytes: the copy failed; send it again")
    size = link_target_size(head)
    if size is not None:
        return Finding(
            "lfs_pointer",
            Level.FAIL,
            f"{path.name} is a Git LFS pointer, not the data ({size} bytes lie elsewhere): send what it points to",
            {"size": str(size)},
        )
    return None


def inside(root: Path, name: str) -> Path | None:
    """`root / name`, or None where metadata name a file outside of the recording."""
    if not name or "\0" in name or Path(name).is_absolute():
        return None
    path = root / name
    return path if path.resolve().is_relative_to(root.resolve()) else None
