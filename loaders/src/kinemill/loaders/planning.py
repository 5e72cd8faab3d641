"""From a row and a step to byte ranges, and from fetched bytes to the fields of a sample.

The anchor of a sample is a frame of the reference camera (the first camera whose count is the
manifest's `frames`), found by its number: exact, whatever the clock did. Cameras recorded in
step with it are read by number too; the others, and windows in seconds, by time. State windows in
steps are read as a run of rows around the estimated place and cut where the anchor's true time
falls, so jitter shifts nothing.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.episode import Layout, Window
from kinemill.errors import CorruptError, UsageError
from kinemill.loaders.fields import Field

if TYPE_CHECKING:
    from kinemill.episode import EpisodeReader
    from kinemill.episode.layout import GroupLayout
    from kinemill.episode.reader import Plan

__all__ = ["Grid", "SamplePlan", "Slots", "fill", "make_grid", "plan_sample"]

MARGIN = 2
"""Rows read on either side of the estimated place."""
Times = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Grid:
    """An episode's anchors: how a step number becomes a moment, without reading a byte.

    Attributes:
        layout: Of the episode.
        reference: Topic of the reference camera; None without cameras.
        steps: How many anchors there are.
        period_ns: Between anchors where there is no camera, else the nominal frame period.
    """

    layout: Layout
    reference: str | None
    steps: int
    period_ns: int
    t_first_ns: int
    where: dict[str, tuple[GroupLayout, int]]
    asks: dict[str, _Ask] = field(default_factory=dict)
    _ends: dict[str, Times] = field(default_factory=dict)
    _same: dict[str, bool] = field(default_factory=dict)
    _has: dict[str, bool] = field(default_factory=dict)

    def has(self, topic: str) -> bool:
        """Whether the episode has any message of a topic, as far as its layout tells."""
        found = self._has.get(topic)
        if found is None:
            group, position = self.where.get(topic, (None, 0))
            found = self._has[topic] = (
                group is not None and len(group) > 0 and (group.counts is None or bool(group.counts[position].any()))
            )
        return found

    def anchor_ns(self, step: int) -> int:
        """When anchor `step` is, from the chunk table: exact on a regular clock, within its jitter otherwise."""
        if self.reference is None:
            return self.t_first_ns + step * self.period_ns
        group, position = self.where[self.reference]
        assert group.counts is not None  # noqa: S101 - make_grid refused a layout without
        ends = self.ends_of(self.reference)
        chunk = min(int(ends.searchsorted(step, side="right")), len(group) - 1)
        count = int(group.counts[position, chunk])
        inside = step - (int(ends[chunk]) - count)
        first, last = int(group.t_first_ns[chunk]), int(group.t_last_ns[chunk])
        return first + (round(inside * (last - first) / (count - 1)) if count > 1 else 0)

    def ends_of(self, topic: str) -> Times:
        """Running count of a topic's messages over its group's chunks."""
        found = self._ends.get(topic)
        if found is None:
            group, position = self.where[topic]
            assert group.counts is not None  # noqa: S101 - callers ask for topics that were counted
            found = self._ends[topic] = np.cumsum(group.counts[position])
        return found

    def in_step(self, topic: str) -> bool:
        """Whether a camera has as many frames as the reference in every chunk: then numbers agree."""
        found = self._same.get(topic)
        if found is None:
            group, position = self.where[topic]
            other, place = self.where[self.reference] if self.reference else (None, 0)
            found = self._same[topic] = (
                other is group
                and group.counts is not None
                and bool((group.counts[position] == group.counts[place]).all())
            )
        return found


def make_grid(
    layout: Layout, *, frames: int, fps: float, anchor_hz: float | None, duration_ns: int, where: str
) -> Grid:
    """The anchors of one episode.

    Args:
        layout: Of the episode.
        frames: Of the manifest's row.
        fps: As above.
        anchor_hz: Anchors per second where there is no camera.
        duration_ns: As above.
        where: Of errors.

    Raises:
        CorruptError: The row counts frames that no camera of the layout has.
    """
    places = {t.topic: (g, i) for g in layout.groups for i, t in enumerate(g.topics)}
    if frames <= 0:
        period = round(1e9 / (anchor_hz or 1.0))
        return Grid(layout, None, duration_ns // period + 1, period, layout.t_first_ns, places)
    for topic, (group, i) in places.items():
        if group.topics[i].kind == "video" and group.counts is not None and int(group.counts[i].sum()) == frames:
            return Grid(layout, topic, frames, round(1e9 / fps) if fps else 33_333_333, layout.t_first_ns, places)
    raise CorruptError(
        f"{where}: the manifest counts {frames} frames, no camera of its layout has as many; rebuild the manifest"
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Ask:
    """How one field is asked for and cut."""

    field: Field
    key: str | None
    """Of the answer; None where the episode has no message of the topic."""
    rows: bool = False
    """A run of rows to cut at the anchor."""
    first: int = 0
    """Number of the run's first row."""
    total: int = 0
    """Rows of the topic in the episode."""
    picks: tuple[int, ...] | None = None
    """Which answers are wanted; None: each, in order."""
    at_anchor: int | None = None
    """Which answer is the anchor's own frame; None where none is."""


@dataclass(frozen=True, slots=True, eq=False)
class SamplePlan:
    """Everything needed to finish a sample once its bytes are there."""

    reader: EpisodeReader
    plan: Plan
    asks: tuple[_Ask, ...]
    anchor_ns: int
    absent: tuple[str, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, length) of each request."""
        return self.plan.ranges


@dataclass(frozen=True, slots=True, eq=False)
class Slots:
    """Where one sample's arrays go: views of a batch, or arrays of their own.

    Attributes:
        data: Key -> (T, ...) of the field's shape and dtype.
        pad: Key -> (T,) bool.
        times: Key -> (T,) int64 ns; empty dictionary where nobody wants them.
    """

    data: dict[str, npt.NDArray[Any]]
    pad: dict[str, npt.NDArray[np.bool_]]
    times: dict[str, Times]


def _slack(ask: Field) -> int:
    """How far after its moment a message may lie: never more than half a period, so none is looked at twice."""
    return ask.tolerance_ns if ask.period_ns is None else min(ask.tolerance_ns, ask.period_ns // 2)


def _by_time(one: Field, moments: tuple[int, ...]) -> Window:
    slack = _slack(one)
    return Window.at(one.topic, [t + slack for t in moments], tolerance_ns=one.tolerance_ns + slack, name=one.key)


@functools.lru_cache(maxsize=256)
def _run_of(numbers: tuple[int, ...]) -> tuple[int, int, int, tuple[int, ...] | None, int | None]:
    """The evenly spaced run that holds all of `numbers`.

    Returns:
        Its first, count and stride; which of it are wanted (None: each, in order); which is the anchor's own (None:
        none).
    """
    low, high = min(numbers), max(numbers)
    stride = math.gcd(*(number - low for number in numbers)) or 1
    count = (high - low) // stride + 1
    picks = tuple((number - low) // stride for number in numbers)
    return low, count, stride, None if picks == tuple(range(count)) else picks, -low // stride if 0 in numbers else None


def in_place(sample: SamplePlan, slots: Slots, pixels: str) -> dict[str, npt.NDArray[np.uint8]]:
    """Where the decoder may write right into the batch: frames that need no picking, resizing or transform.

    Args:
        sample: The plan.
        slots: Where the sample goes.
        pixels: FFmpeg's name of the format that the reader gives.
    """
    target = {"rgb": "rgb24", "yuv420": "yuv420p", "gray": "gray"}
    return {
        ask.key: slots.data[ask.field.key]
        for ask in sample.asks
        if ask.key is not None
        and ask.field.video
        and ask.picks is None
        and ask.field.transform is None
        and ask.field.frame_size == ask.field.source_size
        and target[ask.field.pixels] == pixels
    }


def _row_estimate(grid: Grid, topic: str, t_ns: int) -> tuple[int, int]:
    """(number of the row at or before a moment, as far as the chunk table tells; rows in all)."""
    group, position = grid.where[topic]
    assert group.counts is not None  # noqa: S101 - checked by the caller
    counts = group.counts[position]
    ends = grid.ends_of(topic)
    total = int(ends[-1])
    chunk = max(0, int(group.t_first_ns.searchsorted(t_ns, side="right")) - 1)
    n = int(counts[chunk])
    first, last = int(group.t_first_ns[chunk]), int(group.t_last_ns[chunk])
    inside = 0 if n < 2 or last <= first else int((t_ns - first) * (n - 1) // (last - first))
    return int(ends[chunk]) - n + min(max(inside, 0), max(n - 1, 0)), total


def plan_sample(reader: EpisodeReader, grid: Grid, fields: tuple[Field, ...], step: int) -> SamplePlan:
    """What to fetch for one sample.

    Args:
        reader: Of the episode.
        grid: Its anchors.
        fields: Of the sample.
        step: Which anchor.
    """
    anchor = grid.anchor_ns(step)
    asks: list[_Ask] = []
    windows: list[Window] = []
    absent: list[str] = []
    for one in fields:
        if not grid.has(one.topic):
            asks.append(_Ask(one, None))
            absent.append(one.topic)
            continue
        place = grid.where[one.topic]
        if one.video and one.frame_size == one.source_size:
            told = place[0].topics[place[1]]
            if (told.height, told.width) != one.source_size:
                raise UsageError(
                    f"{reader.key}: '{one.key}' is {told.height}x{told.width} here and {one.source_size[0]}x"
                    f"{one.source_size[1]} in the first episode; give resize=, or where= to keep one robot"
                )
        moments = one.window.offsets_ns
        if moments is not None:
            wanted = tuple(anchor + offset for offset in moments)
            windows.append(_by_time(one, wanted))
            exact = one.video and grid.reference is not None and grid.in_step(one.topic) and 0 in moments
            asks.append(_Ask(one, one.key, at_anchor=moments.index(0) if exact else None))
            continue
        numbers = one.window.steps or ()
        if one.video and grid.reference is not None and grid.in_step(one.topic):
            low, count, stride, picks, at_anchor = _run_of(numbers)
            windows.append(Window.steps(one.topic, step + low, count, stride=stride, name=one.key))
            ask = grid.asks.get(one.key)
            if ask is None:  # the same for every step of the episode
                ask = grid.asks[one.key] = _Ask(one, one.key, at_anchor=at_anchor, picks=picks)
            asks.append(ask)
        elif one.video or place[0].counts is None or not place[0].in_order:
            period = one.period_ns or grid.period_ns
            wanted = tuple(anchor + number * period for number in numbers)
            windows.append(_by_time(one, wanted))
            asks.append(_Ask(one, one.key))
        else:
            at, total = _row_estimate(grid, one.topic, anchor)
            _, low, high, _ = _numbers(numbers)
            first = max(0, min(at + low - MARGIN, total - 1))
            stop = max(first + 1, min(at + high + MARGIN + 1, total))
            first = min(first, max(0, min(at - MARGIN, total - 1)))  # the run must hold the anchor's own row
            stop = max(stop, min(at + MARGIN + 1, total))
            windows.append(Window.steps(one.topic, first, stop - first, name=one.key))
            asks.append(_Ask(one, one.key, rows=True, first=first, total=total))
    return SamplePlan(reader, reader.plan(windows), tuple(asks), anchor, tuple(absent))


def fill(sample: SamplePlan, answers: dict[str, Any], slots: Slots, resized: Any, rng_of: Any) -> int:
    """Put the answers where they belong.

    Args:
        sample: The plan.
        answers: Of `EpisodeReader.decode`.
        slots: Where to.
        resized: (field, pictures (n, ...)) -> (n, H, W, 3) of the field's size.
        rng_of: key -> random generator, for transforms.

    Returns:
        The anchor's true time, ns.
    """
    anchor = sample.anchor_ns
    for ask in sample.asks:  # the reference camera's own stamp, where it is part of the sample
        if ask.at_anchor is not None and ask.key is not None and not answers[ask.key][2][ask.at_anchor]:
            anchor = int(answers[ask.key][0][ask.at_anchor])
            break
    for ask in sample.asks:
        one = ask.field
        if ask.key is None:
            slots.data[one.key][...] = 0
            slots.pad[one.key][...] = True
            continue
        t_ns, data, pad = answers[ask.key]
        if ask.rows:
            t_ns, data, pad = _cut(sample, ask, anchor, t_ns, data)
        elif ask.picks is not None:
            picked = np.asarray(ask.picks, np.int64)
            t_ns, data, pad = t_ns[picked], data[picked], pad[picked]
        if data is slots.data[one.key]:  # decoded in place
            slots.pad[one.key][...] = pad
            if slots.times:
                slots.times[one.key][...] = t_ns
            continue
        if one.video:
            data = resized(one, data)
        elif one.normaliser is not None:
            data = one.normaliser(data.astype(np.float32))
        if one.transform is not None:
            data = one.transform(data if one.video else np.asarray(data, np.float32), rng_of(one.key))
        if data.shape != slots.data[one.key].shape:
            raise UsageError(
                f"{sample.reader.key}: '{one.key}' is {data.shape} here and {slots.data[one.key].shape} in the first "
                "episode; keep one robot by where="
            )
        slots.data[one.key][...] = data
        slots.pad[one.key][...] = pad
        if slots.times:
            slots.times[one.key][...] = t_ns
    return anchor


_NO_PAD = np.zeros((), np.bool_)


@functools.lru_cache(maxsize=256)
def _numbers(steps: tuple[int, ...]) -> tuple[npt.NDArray[np.int64], int, int, bool]:
    """(steps, lowest, highest, whether they are consecutive and rising)."""
    low = min(steps)
    return np.asarray(steps, np.int64), low, max(steps), steps == tuple(range(low, low + len(steps)))


def _cut(
    sample: SamplePlan, ask: _Ask, anchor: int, t_ns: Times, data: npt.NDArray[Any]
) -> tuple[Times, npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """The wanted steps out of a run of rows, counted from the anchor's own row."""
    first = ask.first
    numbers, low_step, high_step, run = _numbers(ask.field.window.steps or ())
    at = int(t_ns.searchsorted(anchor, side="right")) - 1
    start, stop = at + low_step, at + high_step + 1
    if run and at >= 0 and start >= 0 and stop <= len(t_ns) and (at < len(t_ns) - 1 or first + len(t_ns) == ask.total):
        return t_ns[start:stop], data[start:stop], _NO_PAD  # all there, in a row: most samples
    for _ in range(2):
        at = int(np.searchsorted(t_ns, anchor, side="right")) - 1
        wanted = first + at + numbers
        low, high = max(0, int(wanted.min())), min(ask.total - 1, int(wanted.max()))
        bracketed = (at >= 0 or first == 0) and (at < len(t_ns) - 1 or first + len(t_ns) == ask.total)
        if bracketed and (low > high or (low >= first and high < first + len(t_ns))):
            break
        # the clock ran unevenly inside a chunk: read the run again with a margin that a chunk cannot pass
        margin = 64 + 4 * len(t_ns)
        first = max(0, first - margin)
        stop = min(ask.total, ask.first + len(t_ns) + margin)
        answer = sample.reader.read([Window.steps(ask.field.topic, first, stop - first)])
        t_ns, data, _ = answer[ask.field.topic]
    pad = (wanted < 0) | (wanted >= ask.total) | (at < 0)
    picked = np.clip(wanted - first, 0, len(t_ns) - 1)
    return t_ns[picked], data[picked], pad
