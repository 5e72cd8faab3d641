"""Where a run's quarantine records go: JSON lines below its run folder, which may be a folder or a store's prefix."""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kinemill.contracts import QuarantineRecord
from kinemill.errors import ContractError, KinemillError
from kinemill.loaders.stores import store_for
from kinemill.records import dumps, loads

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Spool", "StoreSpool", "read_quarantine", "spool_of", "spool_path", "write_record"]

log = logging.getLogger(__name__)
FOLDER = "quarantine"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class StoreSpool:
    """Records of one rank as objects below a store's prefix: objects cannot be appended to, so each is one.

    There is one record an episode and reason, so they are few.

    Attributes:
        url: Of the run folder, such as `s3://runs/vla-7`.
        rank: Begins each object's name.
    """

    url: str
    rank: int

    def __str__(self) -> str:
        return f"{self.url}/{FOLDER}/rank-{self.rank:05}-*.jsonl"

    def write(self, line: bytes, at_ns: int) -> None:
        """Put one record; raises what the store raises."""
        name = f"rank-{self.rank:05}-{at_ns}-{os.getpid()}-{next(_numbers)}.jsonl"
        store_for(self.url).put_if_absent(f"{FOLDER}/{name}", line)


Spool = Path | StoreSpool


def spool_path(run_folder: Path, rank: int) -> Path:
    """`<run folder>/quarantine/rank-00000.jsonl`."""
    return run_folder / FOLDER / f"rank-{rank:05}.jsonl"


def _local(run_folder: str | Path) -> Path | None:
    """The run folder as a path; None where it is a store's URL."""
    if isinstance(run_folder, Path) or "://" not in run_folder:
        return Path(run_folder)
    parts = urlsplit(run_folder)
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def spool_of(run_folder: str | Path, rank: int) -> Spool:
    """Where `rank` writes: one file below a folder, or an object a record below a store's prefix.

    Raises:
        ConfigError: A URL that names no store.
    """
    local = _local(run_folder)
    if local is not None:
        return spool_path(local, rank)
    url = str(run_folder).rstrip("/")
    store_for(url)  # a wrong URL is told now, not with the first broken episode
    return StoreSpool(url, rank)


def write_record(spool: Spool, record: QuarantineRecord) -> None:
    """Add a record. What cannot be written is logged: a run does not end for it."""
    line = (dumps(record) + "\n").encode()
    try:
        if isinstance(spool, StoreSpool):
            spool.write(line, record.at_ns)
            return
        spool.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(spool, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # workers of a rank share the file; appends may be cut on a network disk
            os.write(fd, line)
        finally:
            os.close(fd)
    except (OSError, KinemillError) as exc:
        log.warning("%s: cannot write the quarantine record (%s); it stands in this log only", spool, exc)


def _files(run_folder: str | Path) -> Iterator[tuple[str, bytes]]:
    local = _local(run_folder)
    if local is not None:
        for path in sorted((local / FOLDER).glob("*.jsonl")):
            yield str(path), path.read_bytes()
        return
    store = store_for(str(run_folder).rstrip("/"))
    for meta in store.list(f"{FOLDER}/"):
        if meta.key.endswith(".jsonl"):
            yield f"{store.url}/{meta.key}", store.get(meta.key)


def read_quarantine(run_folder: str | Path) -> list[QuarantineRecord]:
    """All records of a run, in the order of time. A last line cut by a crash is left out and logged.

    Args:
        run_folder: A folder, or the URL of a store's prefix.
    """
    found: list[QuarantineRecord] = []
    for where, data in _files(run_folder):
        for number, line in enumerate(data.splitlines(), 1):
            try:
                found.append(loads(QuarantineRecord, line, where=f"{where}:{number}"))
            except ContractError as exc:
                log.warning("%s", exc)
    return sorted(found, key=lambda record: record.at_ns)
