"""State, depth, lidar, audio, events: messages become chunks that cover a span of time, sorted inside.

A `SpanGroup` hands out `BuiltChunk`s in file order and holds no more than its reorder window plus one chunk.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill.episode.cdr import JointTemplate, joint_template
from kinemill.episode.chunks import BuiltChunk, Compressor, build_flat
from kinemill.episode.topics import Profile, TopicSpec
from kinemill.errors import LimitError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SpanGroup"]

_NOTHING: Final = -1
"""Not a time: no cut is due."""


@dataclass(slots=True)
class _Column:
    """Pending messages of one topic: payloads, or rows that are encoded when the chunk is cut."""

    template: JointTemplate | None
    times: list[Any] = field(default_factory=list)
    """int, or int64 arrays for blocks of rows."""
    payloads: list[Any] = field(default_factory=list)
    """bytes, or float64 arrays [n, columns]."""
    count: int = 0


class SpanGroup:
    """State, depth, lidar, audio, events: chunks that cover a span of time, sorted inside."""

    def __init__(self, name: str, specs: Sequence[TopicSpec], channels: Sequence[int], profile: Profile) -> None:
        self.name = name
        self.specs = specs
        self.channels = channels
        self.counts: Counter[str] = Counter()
        self.late = 0
        self._profile = profile
        rows = all(s.names for s in specs)
        self._compress = Compressor(profile.state_zstd_level if rows else profile.zstd_level)
        self._columns = [
            _Column(joint_template(s.names, s.fields, s.frame_id) if s.names and s.schema is None else None)
            for s in specs
        ]
        self._sequence = [1] * len(specs)
        self._newest = -1
        self._cut_ns: int | None = None
        """End of the chunk that is being filled; what lies before the start of it is late."""
        self._pending_bytes = 0
        self._kept_bytes = 0
        """What the last cut left."""
        self._last_cut = -1

    def rows(self, topic: int, t_ns: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Take rows: int64 [n], float64 [n, columns]."""
        column = self._columns[topic]
        if column.template is None:
            raise UsageError(f"topic {self.specs[topic].topic}: rows need a topic with `names`")
        if values.shape != (len(t_ns), column.template.columns):
            raise UsageError(
                f"topic {self.specs[topic].topic}: values of shape {values.shape} for {len(t_ns)} stamps and "
                f"{column.template.columns} columns"
            )
        if not len(t_ns):
            return
        column.times.append(t_ns)
        column.payloads.append(values)
        self._note(int(t_ns.min()), int(t_ns.max()), len(t_ns) * len(column.template.data), t_ns)

    def message(self, topic: int, t_ns: int, payload: bytes) -> None:
        """Take one message as it is."""
        if len(payload) > self._profile.max_chunk_bytes:
            raise LimitError(
                f"topic {self.specs[topic].topic}: a message of {len(payload) >> 20} MiB; chunks hold at most "
                f"{self._profile.max_chunk_bytes >> 20} MiB"
            )
        column = self._columns[topic]
        column.times.append(np.array([t_ns], np.int64))
        column.payloads.append(payload)
        self._note(t_ns, t_ns, len(payload), column.times[-1])

    def _note(self, first: int, last: int, size: int, times: NDArray[np.int64]) -> None:
        self._newest = max(self._newest, last)
        self._pending_bytes += size
        if self._cut_ns is None:
            self._cut_ns = first + self._profile.span_ns
        if first < self._last_cut:
            self.late += int((times < self._last_cut).sum())

    def chunks(self, *, final: bool = False) -> Iterator[BuiltChunk]:
        """What can be written now; with `final`, all that is left."""
        while self._cut_ns is not None:
            until = self._until(final=final)
            if until == _NOTHING:
                return
            blocks = self._split(until)
            if any(len(b[1]) for b in blocks):
                yield from self._build(blocks)
            if until is None:
                self._cut_ns = None
                self._last_cut = self._newest + 1
                return
            self._last_cut = until
            self._cut_ns = self._next_cut(until)

    def flush(self) -> Iterator[BuiltChunk]:
        """All there is, without waiting for what may still come before it."""
        yield from self.chunks(final=True)

    def _until(self, *, final: bool) -> int | None:
        """Where to cut now; None: behind all there is."""
        cut = self._cut_ns or 0
        if final:
            return cut if self._newest >= cut else None
        horizon = self._newest - self._profile.reorder_ns
        if horizon >= cut:
            return cut
        # much data: in smaller pieces than a second, but the reorder window stays, within a bound
        most = self._profile.max_chunk_bytes
        if self._pending_bytes >= 2 * most:
            return None
        span = self._profile.span_bytes
        if self._pending_bytes >= span + most // 4 and self._pending_bytes - self._kept_bytes >= span:
            first = min(int(t.min()) for c in self._columns for t in c.times)
            return horizon if first < horizon else _NOTHING
        return _NOTHING

    def _next_cut(self, until: int) -> int | None:
        first = min((int(t.min()) for c in self._columns for t in c.times), default=None)
        if first is None:
            return None
        span = self._profile.span_ns
        return until + span * ((max(first, until) - until) // span + 1)

    def _split(self, until: int | None) -> list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]]:
        """Messages before `until`, per topic, sorted; the rest stays."""
        blocks = []
        for column in self._columns:
            times, payloads = column.times, column.payloads
            column.times, column.payloads = [], []
            if not times:
                blocks.append((np.empty(0, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64)))
            elif column.template is not None and not isinstance(payloads[0], bytes):
                t = np.concatenate(times)
                rows = np.concatenate(payloads)
                if until is not None and not (t < until).all():
                    keep = t >= until
                    column.times, column.payloads = [t[keep]], [rows[keep]]
                    t, rows = t[~keep], rows[~keep]
                order = np.argsort(t, kind="stable")
                t = t[order]
                matrix = column.template.encode(t, rows[order])
                blocks.append((matrix.reshape(-1), np.full(len(t), len(column.template.data), np.int64), t))
            else:
                blocks.append(_take_messages(column, times, payloads, until))
        self._pending_bytes = self._kept_bytes = sum(
            len(p) * (1 if c.template is None else len(c.template.data)) for c in self._columns for p in c.payloads
        )
        for _, _, t in blocks:
            self.counts["repeated_stamps"] += int((np.diff(t) == 0).sum())
        return blocks

    def _build(
        self, blocks: list[tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]]
    ) -> Iterator[BuiltChunk]:
        size = sum(len(data) for data, _, _ in blocks)
        if size > min(self._profile.span_bytes, self._profile.max_chunk_bytes):
            times = np.unique(np.concatenate([t for _, _, t in blocks]))
            if len(times) > 1:
                middle = int(times[len(times) // 2 - 1])
                yield from self._build([_part(b, middle, before=True) for b in blocks])
                yield from self._build([_part(b, middle, before=False) for b in blocks])
                return
        if size > self._profile.max_chunk_bytes:
            raise LimitError(
                f"group {self.name}: {size >> 20} MiB of messages with one stamp; chunks hold at most "
                f"{self._profile.max_chunk_bytes >> 20} MiB"
            )
        chunk = build_flat(blocks, self.channels, self._sequence, self._compress)
        self._sequence = [s + n for s, n in zip(self._sequence, chunk.counts, strict=True)]
        yield chunk

    def abort(self) -> None:
        """Nothing to stop."""


def _part(
    block: tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]], middle: int, *, before: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    data, sizes, times = block
    n = int(np.searchsorted(times, middle, "right"))
    byte = int(sizes[:n].sum())
    return (data[:byte], sizes[:n], times[:n]) if before else (data[byte:], sizes[n:], times[n:])


def _take_messages(
    column: _Column, times: list[Any], payloads: list[Any], until: int | None
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    pairs = sorted(((int(t[0]), p) for t, p in zip(times, payloads, strict=True)), key=lambda pair: pair[0])
    now = [pair for pair in pairs if until is None or pair[0] < until]
    for t, payload in pairs[len(now) :]:
        column.times.append(np.array([t], np.int64))
        column.payloads.append(payload)
    return (
        np.frombuffer(b"".join(p for _, p in now), np.uint8),
        np.array([len(p) for _, p in now], np.int64),
        np.array([t for t, _ in now], np.int64),
    )
