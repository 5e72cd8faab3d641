"""Drops, parsers and ledgers for tests of ingestion."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from kinemill.contracts import Receipt, StepResult, StepStatus
from kinemill.pipelines.adapters import (
    Finding,
    RawEpisode,
    Source,
    SourceFacts,
    VendorSpec,
    adapter,
    find_sources,
    load_vendor,
)
from kinemill.pipelines.drops import Drop, generate_drops
from kinemill.pipelines.gates import Converted, judge_facts
from kinemill.pipelines.ingest import IngestReport, Ledger, MemoryLedger, ingest_drop
from kinemill.pipelines.ingest.convert import convert_episode
from kinemill.store import MemoryStore
from support.layers import skip

__all__ = [
    "EPISODES",
    "SECONDS",
    "bag_vendor",
    "codes",
    "convert",
    "ingest",
    "inspect",
    "make_drops",
    "only_source",
    "read",
    "sample",
    "stamps_of",
]

EPISODES, SECONDS = 3, 3.0
_SIZE = {"width": 96, "height": 64}


@functools.cache
def _shared_folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="kinemill-test-drops-")


@functools.cache
def shared_drops() -> dict[str, Drop]:
    """The three drops, made once a process; they are only read."""
    root = Path(_shared_folder().name) / "drops"
    return {d.vendor: d for d in generate_drops(root, 7, episodes=EPISODES, seconds=SECONDS, **_SIZE)}


def make_drops(root: Path, *, seed: int = 7, only: tuple[str, ...] = (), episodes: int = EPISODES) -> dict[str, Drop]:
    """Drops of one's own, to be spoilt."""
    made = generate_drops(root, seed, episodes=episodes, seconds=SECONDS, only=only, **_SIZE)
    return {d.vendor: d for d in made}


def vendor_samples() -> Path:
    """Recordings of other people: $KINEMILL_VENDOR_SAMPLES, or `shared/vendor-samples` beside the repository."""
    told = os.environ.get("KINEMILL_VENDOR_SAMPLES")
    root = Path(told) if told else Path(__file__).resolve().parents[2].parent / "shared" / "vendor-samples"
    if not root.is_dir():
        skip(f"no vendor samples at {root}", run="KINEMILL_VENDOR_SAMPLES=/the/folder make test")
    return root


def sample(path: str) -> Path:
    """One vendor sample."""
    found = vendor_samples() / path
    assert found.exists(), f"{found} is named by the samples' own list and is not there"
    return found


def only_source(path: Path, name: str) -> Source:
    """The one recording at `path`."""
    sources, _, _ = find_sources(path, name)
    assert len(sources) == 1, [s.key for s in sources]
    return sources[0]


def inspect(path: Path, name: str, vendor: VendorSpec | None = None) -> SourceFacts:
    """Facts of the one recording at `path`."""
    return adapter(name).inspect(only_source(path, name), vendor or load_vendor("auto"))


def judged(path: Path, name: str, vendor: VendorSpec) -> list[Finding]:
    """What the pre-gate says of the one recording at `path`."""
    whole, each = judge_facts(inspect(path, name, vendor), vendor, "x")
    return [*whole, *(f for found in each.values() for f in found)]


def codes(findings: list[Finding] | tuple[Finding, ...], level: str | None = None) -> set[str]:
    """Codes of findings, of one level where given."""
    return {f.code for f in findings if level is None or f.level == level}


def read(path: Path, name: str, vendor: VendorSpec | None = None, index: int = 0) -> RawEpisode:
    """One episode of the one recording at `path`."""
    return adapter(name).read(only_source(path, name), vendor or load_vendor("auto"), index)


def convert(path: Path, name: str, out: Path, vendor: VendorSpec | None = None, index: int = 0) -> Converted:
    """One episode as a file, without a sandbox."""
    import uuid

    spec = vendor or load_vendor("auto")
    return convert_episode(only_source(path, name), spec, index, episode_id=uuid.UUID(int=7), profile="vla", out=out)


def ingest(
    drop: Path,
    vendor: str | VendorSpec,
    work: Path,
    *,
    store: Any = None,
    ledger: Ledger | None = None,
    **more: Any,
) -> IngestReport:
    """Ingest with fakes where nothing is given."""
    more.setdefault("workers", 2)
    return ingest_drop(
        drop,
        vendor,
        store=MemoryStore() if store is None else store,
        ledger=MemoryLedger() if ledger is None else ledger,
        work_dir=work,
        **more,
    )


def stamps_of(episode: RawEpisode) -> dict[str, list[int]]:
    """Times of all pictures by camera, in the order in which they come."""
    found: dict[str, list[int]] = {}
    for picture in episode.pictures():
        found.setdefault(picture.topic, []).append(picture.t_ns)
    return found


def bag_vendor(**changes: Any) -> VendorSpec:
    """The generated ROS 2 vendor with changes."""
    from dataclasses import replace

    return replace(load_vendor("gantry_ros2"), **changes)


def disc_at(image: np.ndarray[Any, Any]) -> tuple[float, float, str] | None:
    """Where the goal disc stands in a picture (x, y in pixels) and its colour; None where it is not in sight."""
    rgb = image.astype(np.int32)
    magenta = (rgb[..., 0] > 170) & (rgb[..., 1] < 110) & (rgb[..., 2] > 140)
    cyan = (rgb[..., 0] < 110) & (rgb[..., 1] > 160) & (rgb[..., 2] > 170)
    name, mask = max((("magenta", magenta), ("cyan", cyan)), key=lambda pair: int(pair[1].sum()))
    if mask.sum() < 12:
        return None
    y, x = np.nonzero(mask)
    return float(x.mean()), float(y.mean()), name


def messages_of(path: Path) -> dict[str, int]:
    """Messages by topic, as the stock MCAP reader counts them."""
    from mcap.reader import make_reader

    found: dict[str, int] = {}
    with path.open("rb") as file:
        for _, channel, _ in make_reader(file, validate_crcs=True).iter_messages():
            found[channel.topic] = found.get(channel.topic, 0) + 1
    return found


def receipt_messages(receipt: Receipt) -> dict[str, int]:
    """Messages by topic, as the receipt says."""
    return {t.topic: t.messages for g in receipt.groups for t in g.topics}


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Environment variables for the time of a block."""
    before = {k: os.environ.get(k) for k in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                os.environ.pop(key, None)
            else:
                os.environ[key] = value


def ledger_contract(make: Callable[[], Ledger]) -> None:
    """What every `Ledger` promises of steps; `make` gives one that stands on the same ground each time."""
    digest, other = "a" * 64, "b" * 64
    ledger = make()
    ledger.run_started("v/d", "v", "d", {})
    assert ledger.finished("v/d", "publish", 1, digest) is None
    token = ledger.claim("v/d", "publish", 1, digest)
    assert token is not None
    assert ledger.claim("v/d", "publish", 1, digest) is None, "a claim that lives is nobody else's"
    assert ledger.claim("v/d", "publish", 1, other) is not None, "another input is another claim"
    ledger.renew(token)
    ledger.release(token, "the store was gone")
    assert ledger.finished("v/d", "publish", 1, digest) is None, "a fault of ours is no completion"
    again = ledger.claim("v/d", "publish", 1, digest)
    assert again is not None, "what was released can be claimed again"
    ledger.finish(again, StepResult("v/d", "publish", 1, StepStatus.OK, digest, counts={"published": 2}))
    found = ledger.finished("v/d", "publish", 1, digest)
    assert found is not None
    assert found.counts == {"published": 2}
    assert ledger.claim("v/d", "publish", 1, digest) is None, "what is finished is not done twice"
    assert ledger.finished("v/d", "publish", 2, digest) is None, "another version of the step is another completion"
    assert ledger.finished("v/e", "publish", 1, digest) is None, "another batch, too"
