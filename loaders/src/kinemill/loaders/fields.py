"""The fields of a sample: what each is called, which topic it comes from, its shape and its treatment.

Shapes are fixed before the first sample is read, so that a batch can be allocated once, in pinned
or shared memory, and decoded into. Frames are (T, H, W, 3) uint8, contiguous: a permuted view
costs 1.5 times the CPU in the collate that follows (measured).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kinemill.errors import ConfigError, CorruptError, UsageError
from kinemill.loaders.normaliser import Normaliser
from kinemill.loaders.transforms import Transform
from kinemill.loaders.windows import Window
from kinemill.records import nearest

if TYPE_CHECKING:
    from kinemill.loaders.manifest import Manifest, ManifestRow

__all__ = ["PIXELS", "Field", "TopicFacts", "known_topics", "resolve_fields", "topic_facts"]

PIXELS = ("rgb", "yuv420", "gray")
DEFAULT_TOLERANCE_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """What a manifest's topic table says of one topic."""

    topic: str
    kind: str
    group: str
    rate_hz: float | None
    width: int
    height: int
    columns: int
    names: tuple[str, ...]


@functools.lru_cache(maxsize=64)
def topic_facts(topics_json: str) -> dict[str, TopicFacts]:
    """The topic table of a row, by topic.

    Raises:
        CorruptError: Not a topic table.
    """
    try:
        groups = json.loads(topics_json)["groups"]
        return {
            str(t["topic"]): TopicFacts(
                topic=str(t["topic"]),
                kind=str(t["kind"]),
                group=str(g["name"]),
                rate_hz=float(t["rate_hz"]) if t.get("rate_hz") else None,
                width=int(t.get("width") or 0),
                height=int(t.get("height") or 0),
                columns=len(t.get("names") or ()) * max(1, len(t.get("fields") or ())),
                names=tuple(t.get("names") or ()),
            )
            for g in groups
            for t in g["topics"]
        }
    except (ValueError, KeyError, TypeError) as exc:
        raise CorruptError(
            f"topic table of the manifest is not what a writer wrote: {type(exc).__name__} {exc}"
        ) from exc


def known_topics(first: ManifestRow, sources: Iterable[Manifest], wanted: Iterable[str]) -> dict[str, TopicFacts]:
    """What manifests know of their topics, so that shapes are fixed before anything is read.

    The first row with samples decides. A topic that it lacks, because its episode has fewer cameras or none, is taken
    from the manifests' other topic tables: source by source, tables in sorted order.

    Args:
        first: The first row with samples.
        sources: The manifests.
        wanted: Looking stops once these are found.
    """
    found = dict(topic_facts(first.topics))
    names = set(wanted)
    for source in sources:
        seen: set[str] = set()
        for view, _, _ in source.parts():
            if names <= found.keys():
                return found
            for word in view.words("topics"):
                if word not in seen:
                    seen.add(word)
                    found = topic_facts(word) | found
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """One entry of a sample.

    Attributes:
        key: Its name in the sample.
        topic: Where it comes from.
        video: Frames (uint8), or else rows of numbers (float32).
        window: Which messages.
        period_ns: Of the topic's nominal rate; None where it has none.
        tolerance_ns: How far a message may lie from its moment.
        source_size: (height, width) of the frames as recorded; (0, 0) for rows.
        frame_size: (height, width) after the resize, before the transform.
        shape: Of one sample, T first.
        pixels: rgb, yuv420 or gray.
        normaliser: For rows; None: as recorded.
        transform: Train-time; may change the shape, to `shape`.
    """

    key: str
    topic: str
    video: bool
    window: Window
    period_ns: int | None
    tolerance_ns: int
    source_size: tuple[int, int]
    frame_size: tuple[int, int]
    shape: tuple[int, ...]
    pixels: str = "rgb"
    normaliser: Normaliser | None = None
    transform: Transform | None = None

    @property
    def dtype(self) -> str:
        """NumPy's and torch's name of the element type."""
        return "uint8" if self.video else "float32"


def _frame_shape(pixels: str, size: tuple[int, int], key: str) -> tuple[int, ...]:
    height, width = size
    if pixels == "rgb":
        return (height, width, 3)
    if pixels == "gray":
        return (height, width)
    if height % 2 or width % 2:
        raise UsageError(f"'{key}': yuv420 needs even sizes, got {height}x{width}")
    return (height * 3 // 2, width)


def resolve_fields(
    windows: Mapping[str, Window],
    facts: Mapping[str, TopicFacts],
    *,
    topics: Mapping[str, str],
    resize: Mapping[str, tuple[int, int]],
    pixels: str,
    normalisers: Mapping[str, Normaliser],
    transforms: Mapping[str, Transform],
    assume: Mapping[str, tuple[int, ...]],
) -> tuple[Field, ...]:
    """Fix names, shapes and tolerances.

    Args:
        windows: By key.
        facts: Of the manifest's topics; see `known_topics`.
        topics: Key -> topic, where they differ.
        resize: Key -> (height, width).
        pixels: For all video.
        normalisers: By key.
        transforms: By key.
        assume: Key -> shape of one moment, for topics that no episode has yet, such as
            (480, 640, 3) for a camera or (14,) for a state.

    Raises:
        ConfigError: A topic that the manifest does not have and nobody assumed; the nearest is named.
        UsageError: A setting for a key that is no window.
    """
    if pixels not in PIXELS:
        raise UsageError(f"pixels {pixels!r}: one of {', '.join(PIXELS)}")
    for what, given in (("topics", topics), ("resize", resize), ("normalise", normalisers), ("transforms", transforms)):
        for key in given:
            if key not in windows:
                close = nearest(key, windows)
                raise UsageError(f"{what}: '{key}' is no window" + (f"; did you mean '{close}'?" if close else ""))
    found = []
    for key, window in windows.items():
        topic = topics.get(key, key)
        known = facts.get(topic)
        if known is None and key not in assume:
            close = nearest(topic, facts)
            raise ConfigError(
                f"'{key}': no episode of the manifest has a topic '{topic}'"
                + (f"; did you mean '{close}'?" if close else f"; there are {', '.join(sorted(facts)) or 'none'}")
                + "; give its shape in assume= if it is to come"
            )
        found.append(
            _field(
                key, topic, window, known, resize.get(key), pixels, normalisers.get(key), transforms.get(key), assume
            )
        )
    return tuple(found)


def _field(  # noqa: PLR0917 - private, one call
    key: str,
    topic: str,
    window: Window,
    known: TopicFacts | None,
    resize: tuple[int, int] | None,
    pixels: str,
    normaliser: Normaliser | None,
    transform: Transform | None,
    assume: Mapping[str, tuple[int, ...]],
) -> Field:
    rate = known.rate_hz if known else None
    period = round(1e9 / rate) if rate else None
    tolerance = window.tolerance_ns
    if tolerance is None:
        tolerance = DEFAULT_TOLERANCE_NS if period is None else (period + 1) // 2
    if known is not None and known.kind not in ("video", "state", "tactile"):
        raise ConfigError(f"'{key}': topic '{topic}' is of kind {known.kind}; samples hold video and state topics")
    assumed = assume.get(key, ())
    video = known.kind == "video" if known else len(assumed) >= 2
    if video:
        recorded = (known.height, known.width) if known else (assumed[0], assumed[1])
        size = resize or recorded
        if not all(size):
            raise ConfigError(
                f"'{key}': the topic table gives no size for '{topic}'; say resize={{'{key}': (height, width)}}"
            )
        shape: tuple[int, ...] = (len(window), *_frame_shape(pixels, size, key))
        if transform is not None:
            shape = _shape_after(transform, shape, "uint8")
        return Field(key, topic, True, window, period, tolerance, recorded, size, shape, pixels, None, transform)
    if resize:
        raise UsageError(f"resize: '{key}' is no camera")
    columns = known.columns if known else assumed[0]
    if normaliser is not None and len(normaliser.shift) != columns:
        raise ConfigError(f"'{key}': statistics of {len(normaliser.shift)} columns for a topic of {columns}")
    shape = (len(window), columns)
    if transform is not None:
        shape = _shape_after(transform, shape, "float32")
    return Field(key, topic, False, window, period, tolerance, (0, 0), (0, 0), shape, pixels, normaliser, transform)


def _shape_after(transform: Transform, shape: Sequence[int], dtype: str) -> tuple[int, ...]:
    """Try it once on zeros: a batch needs to know."""
    import numpy as np

    out: Any = transform(np.zeros(shape, dtype), np.random.default_rng(0))
    return tuple(int(n) for n in out.shape)
