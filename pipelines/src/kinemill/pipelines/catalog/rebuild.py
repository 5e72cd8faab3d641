"""A catalog out of the objects alone, for the day when database and backups are gone.

Every episode file holds its receipt and who recorded what; what people decided later (states, labels, quality,
manifests) is not in it. So rebuilt episodes are `ingested`, and go through validation again.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from kinemill.contracts import ObjectMeta, Rendition, Store, parse_episode_key
from kinemill.errors import (
    ConfigError,
    ConflictError,
    ContractError,
    CorruptError,
    DataError,
    KinemillError,
    NotFoundError,
)
from kinemill.pipelines.catalog.api import Catalog
from kinemill.pipelines.catalog.records import EpisodeCard, Outcome

__all__ = ["RebuildReport", "read_object", "rebuild"]

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found."""

    objects: int
    """Episode files seen."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """By `Outcome`."""
    refused: dict[str, str] = field(default_factory=dict)
    """Key to why; nothing was changed for these."""
    foreign: int = 0
    """Objects under the prefix whose key is no episode's."""


def read_object(store: Store, meta: ObjectMeta, folder: Path) -> tuple[EpisodeCard, Rendition]:
    """Card and rendition of one object, read whole and checked against its key.

    Raises:
        DataError: Damaged, another content than its key says, or without the vendor's names.
    """
    from kinemill.episode.source import read_receipt
    from kinemill.store.files import FileStore

    key = parse_episode_key(meta.key)
    path = folder / "object.mcap"
    store.download(meta.key, path, etag=meta.etag, size_bytes=meta.size_bytes)
    try:
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while data := file.read(_READ_BYTES):
                digest.update(data)
            sha256 = digest.hexdigest()
            if sha256[:12] != key.hash12:
                raise CorruptError(f"{meta.key}: its bytes have sha256 {sha256[:12]}..., its key says {key.hash12}...")
        found = _words(path)
        receipt = replace(read_receipt(FileStore(folder), path.name, sha256=sha256), size_bytes=meta.size_bytes)
    finally:
        path.unlink(missing_ok=True)
    if receipt.episode_id != str(key.episode_id) or receipt.profile != key.profile:
        raise DataError(f"{meta.key}: the file says it is {receipt.episode_id}, profile {receipt.profile}")
    card = EpisodeCard.from_metadata(receipt.episode_id, found)
    return card, Rendition(receipt.episode_id, receipt.profile, meta.key, receipt, meta.etag)


def _words(path: Path) -> dict[str, str]:
    """What an episode file says of itself in `tg.layout`, which stands before its first chunk.

    Raises:
        DataError: Damaged.
    """
    from kinemill.episode import wire
    from kinemill.episode.scan import FileSource, records_in
    from kinemill.episode.source import Cursor

    with FileSource(path) as source:
        for record in records_in(source):
            if record.op == wire.Op.CHUNK:
                break
            if record.op == wire.Op.METADATA:
                cursor = Cursor(record.body, source.name)
                name, items = cursor.text(), cursor.strings()
                if name == "tg.layout":
                    return items
    return {}


def rebuild(
    catalog: Catalog,
    store: Store,
    *,
    batch_size: int = 200,
    progress: Callable[[int], None] | None = None,
) -> RebuildReport:
    """Register every episode file in `store`; what the catalog knows already stays as it is.

    Objects are taken oldest first, so that of two renditions of one profile the newer is current.

    Args:
        catalog: May be empty or partly filled.
        store: Where `episodes/...` lie.
        batch_size: Renditions per transaction.
        progress: Called with the number of objects seen so far.
    """
    metas: list[ObjectMeta] = []
    foreign = 0
    for meta in store.list("episodes/"):
        if meta.key.endswith(".layout"):
            continue  # a sidecar: what it says is in its object too
        try:
            parse_episode_key(meta.key)
        except ContractError:
            foreign += 1
            continue
        metas.append(meta)
    metas.sort(key=lambda meta: (meta.modified_ns or 0, meta.key))
    report = RebuildReport(len(metas), foreign=foreign)
    seen = 0
    with tempfile.TemporaryDirectory(prefix="kinemill-rebuild-") as name:
        left = iter(metas)
        while batch := list(islice(left, batch_size)):
            pairs = []
            for meta in batch:
                try:
                    pairs.append(read_object(store, meta, Path(name)))
                except (DataError, ContractError, NotFoundError, ConflictError) as exc:  # the last two: gone meanwhile
                    report.refused[meta.key] = str(exc)
            for part in _without_repeats(pairs):
                _register(catalog, part, report)
            seen += len(batch)
            if progress is not None:
                progress(seen)
    return report


def _without_repeats(
    pairs: list[tuple[EpisodeCard, Rendition]],
) -> Iterator[list[tuple[EpisodeCard, Rendition]]]:
    """Parts in which no (episode, profile) stands twice: the later one has to find the earlier one there."""
    part: list[tuple[EpisodeCard, Rendition]] = []
    inside: set[tuple[str, str]] = set()
    for card, rendition in pairs:
        mark = (rendition.episode_id, rendition.profile)
        if mark in inside:
            yield part
            part, inside = [], set()
        inside.add(mark)
        part.append((card, rendition))
    if part:
        yield part


def _register(catalog: Catalog, pairs: list[tuple[EpisodeCard, Rendition]], report: RebuildReport) -> None:
    try:
        done = catalog.register_episodes(pairs, verified=True)
    except KinemillError as exc:
        if exc.transient or (isinstance(exc, ConfigError) and not isinstance(exc, ContractError)):
            raise  # the database's, not that of what it was given
        if len(pairs) == 1:
            report.refused[pairs[0][1].key] = str(exc)
        else:
            for pair in pairs:  # find the one that is wrong
                _register(catalog, [pair], report)
        return
    for one in done:
        report.outcomes[one.outcome.value] = report.outcomes.get(one.outcome.value, 0) + 1
        if one.outcome is Outcome.DUPLICATE:
            report.refused[one.object_key] = f"episode {one.episode_id} has the vendor's key or these bytes already"
