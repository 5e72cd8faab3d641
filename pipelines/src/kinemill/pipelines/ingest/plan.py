"""What a run would do: the recordings of a drop, their digests, and which of them are done already."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kinemill import records
from kinemill.errors import EnvironmentFault, UsageError
from kinemill.pipelines.adapters import Finding, Source, VendorSpec, adapter, find_sources, load_vendor
from kinemill.pipelines.ingest.convert import VERSION as CONVERT_VERSION
from kinemill.pipelines.ingest.ledger import Ledger

__all__ = ["IngestPlan", "PlanItem", "plan_drop", "vendor_of"]


@dataclass(frozen=True, slots=True)
class PlanItem:
    """One recording of the drop."""

    source: Source
    input_digest: str
    size_bytes: int
    done: bool
    """Published, or put aside, by an earlier run with the same input, vendor YAML and versions."""


@dataclass(frozen=True, slots=True)
class IngestPlan:
    """A drop, before anything is started."""

    batch: str
    delivery: str
    vendor: VendorSpec
    profile: str
    items: tuple[PlanItem, ...]
    findings: tuple[Finding, ...] = ()
    unclaimed: tuple[str, ...] = ()
    """Files that no adapter knows."""

    @property
    def to_do(self) -> tuple[PlanItem, ...]:
        """What a run would ingest."""
        return tuple(i for i in self.items if not i.done)


def vendor_of(vendor: VendorSpec | str | Path) -> VendorSpec:
    """A vendor as given, by name, or from its YAML file."""
    return vendor if isinstance(vendor, VendorSpec) else load_vendor(vendor)


def plan_drop(
    drop: Path,
    vendor: VendorSpec | str | Path,
    *,
    ledger: Ledger,
    work_dir: Path,
    profile: str = "vla",
    delivery: str | None = None,
) -> IngestPlan:
    """Look at a drop and at the ledger; nothing is parsed, nothing is written but a cache of digests.

    Args:
        drop: The vendor's folder, or one file of it.
        vendor: The vendor, by name or YAML path.
        ledger: Knows what is done.
        work_dir: Holds the cache of file digests.
        profile: Rendition profile to make.
        delivery: What to call the drop; its folder's name where None.

    Raises:
        NotFoundError: No drop, vendor or adapter of that name.
        UsageError: A delivery name that cannot stand in a key.
    """
    from kinemill.pipelines.steps.publish import SPEC as PUBLISH

    spec = vendor_of(vendor)
    name = delivery or drop.resolve().name
    if not re.fullmatch(r"[\w][\w.+@ -]{0,199}", name):
        raise UsageError(f"delivery {name!r}: letters, digits, spaces and . + @ _ - only; name one with --delivery")
    sources, findings, unclaimed = find_sources(drop, None if spec.adapter == "auto" else spec.adapter)
    cache = _DigestCache(work_dir / "digests.json")
    batch = f"{spec.vendor}/{name}"
    items = []
    for source in sources:
        digest, size = _input_digest(source, spec, profile, cache)
        done = ledger.finished(batch, PUBLISH.name, PUBLISH.version, digest) is not None
        items.append(PlanItem(source, digest, size, done))
    cache.save()
    left = [p.relative_to(drop).as_posix() if p != drop else p.name for p in unclaimed]
    return IngestPlan(batch, name, spec, profile, tuple(items), tuple(findings), tuple(left))


def _input_digest(source: Source, vendor: VendorSpec, profile: str, cache: _DigestCache) -> tuple[str, int]:
    """sha256 over everything that decides what comes out, and the recording's size."""
    size = 0
    files = []
    base = source.path if source.path.is_dir() else source.path.parent
    for path in source.files:
        digest, length = cache.sha256(path)
        size += length
        files.append([path.relative_to(base).as_posix(), length, digest])
    what = {
        "adapter": [source.adapter, adapter(source.adapter).version],
        "convert": CONVERT_VERSION,
        "vendor": records.encode(vendor),
        "profile": profile,
        "key": source.key,
        "files": files,
    }
    return hashlib.sha256(records.dumps(what).encode()).hexdigest(), size


class _DigestCache:
    """sha256 of files by path, size, change time and inode, so that a second look costs one stat a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._changed = False
        self._known: dict[str, list[object]] = {}
        try:
            loaded = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(loaded, dict):
                self._known = {k: v for k, v in loaded.items() if isinstance(v, list) and len(v) == 2}
        except (OSError, ValueError):
            pass  # a cache: what cannot be read is made anew

    def sha256(self, path: Path) -> tuple[str, int]:
        stat = path.stat()
        mark = f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"
        found = self._known.get(str(path.resolve()))
        if found is not None and found[0] == mark:
            return str(found[1]), stat.st_size
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        self._known[str(path.resolve())] = [mark, digest]
        self._changed = True
        return digest, stat.st_size

    def save(self) -> None:
        if not self._changed:
            return
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}.new")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(self._known), encoding="utf-8")
            temporary.replace(self._path)
        except OSError as exc:
            with suppress(OSError):
                temporary.unlink()
            raise EnvironmentFault(
                f"{self._path.parent}: the work folder cannot be written ({exc.strerror}); name another with --work-dir"
            ) from exc
