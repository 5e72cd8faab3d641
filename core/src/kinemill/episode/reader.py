"""Read windows of an episode: one ranged read per topic group, verified, then decoded.

With a layout in hand (from a manifest or a receipt) nothing but the wanted chunks is fetched: no
footer, no index. Reading is split in three so that a loader can overlap it: `plan` says which
byte ranges, the store fetches them, `decode` checks and decodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill.contracts.episode import Receipt, TopicKind, TopicReceipt
from kinemill.contracts.store import Store
from kinemill.episode.content import Messages, VideoOptions, read_content
from kinemill.episode.decode import SHARED, DecoderPool, PixelFormat
from kinemill.episode.layout import GroupLayout, Layout
from kinemill.episode.opened import OpenChunk, open_chunk
from kinemill.episode.scratch import scratch
from kinemill.episode.window import Window
from kinemill.errors import CorruptError, LimitError, UsageError
from kinemill.records import nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["EpisodeReader", "Fetch", "Plan"]

MERGE_GAP: Final = 4 << 20
"""Chunks of one group that lie at most this far apart are fetched by one request (a request costs about as much)."""
MAX_READ: Final = 2 << 30
"""No call reads more than this; a longer clip is read in parts."""
_EXTEND: Final = 64

Answer = tuple["NDArray[np.int64]", Any, "NDArray[np.bool_]"]


@dataclass(frozen=True, slots=True, eq=False)
class Fetch:
    """One request: the chunks `first`..`last` of a group."""

    group: int
    first: int
    last: int
    start: int
    length: int


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """What to fetch for some windows."""

    windows: tuple[Window, ...]
    fetches: tuple[Fetch, ...]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """(start, length) of each request."""
        return [(f.start, f.length) for f in self.fetches]


class EpisodeReader:
    """Reads one object. Cheap to make; holds no file, no connection and no decoder of its own.

    Usable after a fork and in a spawned process, as far as its store is. Threads may share it.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        layout: Layout,
        *,
        decoder: str = "pyav",
        pixel_format: PixelFormat = "rgb24",
        pool: DecoderPool = SHARED,
        strict: bool = True,
        etag: str | None = None,
    ) -> None:
        self.store = store
        self.key = key
        self.layout = layout
        self.etag = etag
        self._video = VideoOptions(pool, decoder, pixel_format)
        self._strict = strict
        self._at = {t.topic: (g, i) for g, group in enumerate(layout.groups) for i, t in enumerate(group.topics)}

    @classmethod
    def open(
        cls,
        store: Store,
        key: str,
        *,
        layout: Layout | Receipt | None = None,
        decoder: str = "pyav",
        pixel_format: PixelFormat = "rgb24",
        pool: DecoderPool = SHARED,
    ) -> EpisodeReader:
        """A reader of one object.

        Args:
            store: Where it lies.
            key: Its key.
            layout: From the manifest's columns or a receipt: nothing is read now. None: the file's
                own index is fetched (two or three requests), or a stock MCAP's chunk index.
            decoder: A name in `kinemill.episode.decode.DECODERS`.
            pixel_format: Of the pictures returned: rgb24, yuv420p or gray.
            pool: Decoders to reuse; the process's own by default.

        Raises:
            TruncatedError: The object has no footer; `kinemill episode repack` can save what is whole.
            CorruptError: Its index is damaged.
        """
        strict = True
        if layout is None:
            from kinemill.episode.source import find_layout

            layout, strict = find_layout(store, key)
        elif isinstance(layout, Receipt):
            layout = Layout.from_receipt(layout)
        return cls(store, key, layout, decoder=decoder, pixel_format=pixel_format, pool=pool, strict=strict)

    @property
    def topics(self) -> dict[str, TopicReceipt]:
        """Every topic by name."""
        return self.layout.topics

    # -- reading

    def read(
        self, windows: Sequence[Window], *, out: Mapping[str, NDArray[np.uint8]] | None = None
    ) -> dict[str, Answer]:
        """Fetch, verify and decode.

        Args:
            windows: With distinct keys.
            out: For some keys of cameras, the array that the pictures are written into.

        Returns:
            For each window's key (its topic, unless it has a name) `(t_ns, data, is_pad)`:
            true log times int64 [n]; data [n, ...], by the topic's kind: pictures uint8, rows
            float64 [n, columns], depth uint16 [n, H, W], text and other messages as lists; and
            bool [n], True where nothing lies at or before the wanted time within the tolerance
            (then data repeats the nearest message, or is zero for a topic without messages).

        Raises:
            UsageError: An unknown topic.
            CorruptError: Bytes differ from what was written; names group, chunk and time. Nothing
                of a doubtful GOP is returned.
            TruncatedError: The object is shorter than the layout says.
        """
        plan = self.plan(windows)
        return self.decode(plan, self._fetch(plan.fetches) if plan.fetches else [], out=out)

    def plan(self, windows: Sequence[Window]) -> Plan:
        """Which bytes `windows` need; one range per group, unless parts lie over 4 MiB apart."""
        wanted: dict[int, set[int]] = {}
        known: dict[tuple[int, tuple[int, ...], str], set[int]] = {}
        keys = set()
        for window in windows:
            if window.key in keys:
                raise UsageError(f"two windows with the key {window.key}; give one a name")
            keys.add(window.key)
            where = self._at.get(window.topic)
            if where is None:
                close = nearest(window.topic, self._at)
                raise UsageError(
                    f"episode {self.key} has no topic {window.topic}" + (f"; did you mean {close}?" if close else "")
                )
            group = self.layout.groups[where[0]]
            # in a group whose chunks all hold all topics, windows of the same times need the same chunks
            same = (where[0], window.times_ns, window.pick) if group.full and window.times_ns else None
            chunks = None if same is None else known.get(same)
            if chunks is None:
                chunks = _chunks_of(group, where[1], window)
                if same is not None and window.pick == "before":
                    known[same] = chunks
            wanted.setdefault(where[0], set()).update(chunks)
        return Plan(tuple(windows), self._fetches(wanted))

    def decode(
        self,
        plan: Plan,
        blobs: Sequence[bytes | memoryview],
        *,
        out: Mapping[str, NDArray[np.uint8]] | None = None,
    ) -> dict[str, Answer]:
        """The answer to a plan whose ranges were fetched elsewhere; `read` in all else.

        Args:
            plan: From `plan`.
            blobs: One for each of `plan.ranges`.
            out: As for `read`.
        """
        memory = scratch()
        mark = memory.mark()
        chunks: dict[tuple[int, int], OpenChunk] = {}
        try:
            self._open(plan.fetches, blobs, chunks)
            for _ in range(_EXTEND):
                answers, more = self._answer(plan.windows, chunks, out or {})
                if not more:
                    return answers
                fetches = self._fetches(more)
                self._open(fetches, self._fetch(fetches), chunks)
        finally:
            memory.release(mark)
        raise CorruptError(f"episode {self.key}: no IDR within {_EXTEND} chunks before the wanted frames")

    def _fetch(self, fetches: Sequence[Fetch]) -> list[bytes]:
        if len(fetches) == 1:
            return [self.store.get_range(self.key, fetches[0].start, fetches[0].length, etag=self.etag)]
        return self.store.get_ranges(self.key, [(f.start, f.length) for f in fetches])

    def _fetches(self, wanted: dict[int, set[int]]) -> tuple[Fetch, ...]:
        out = []
        total = 0
        for g, numbers in sorted(wanted.items()):
            group = self.layout.groups[g]
            run: list[int] = []
            for k in sorted(numbers, key=lambda k: int(group.offset[k])):
                start = int(group.offset[k])
                if run and start - run[3] <= MERGE_GAP and k >= run[1]:
                    run[1], run[3] = k, start + int(group.length[k])
                    continue
                if run:
                    out.append(Fetch(g, run[0], run[1], run[2], run[3] - run[2]))
                run = [k, k, start, start + int(group.length[k])]
            if run:
                out.append(Fetch(g, run[0], run[1], run[2], run[3] - run[2]))
        total = sum(f.length for f in out)
        if total > MAX_READ:
            raise LimitError(f"episode {self.key}: {total >> 20} MiB for one read; the bound is {MAX_READ >> 20}")
        return tuple(out)

    def _open(
        self, fetches: Sequence[Fetch], blobs: Sequence[bytes | memoryview], chunks: dict[tuple[int, int], OpenChunk]
    ) -> None:
        if len(fetches) != len(blobs):
            raise UsageError(f"{len(blobs)} blobs for {len(fetches)} ranges")
        for fetch, blob in zip(fetches, blobs, strict=True):
            group = self.layout.groups[fetch.group]
            view = memoryview(blob)
            if len(view) != fetch.length:
                raise CorruptError(f"episode {self.key}: {len(view)} bytes for a range of {fetch.length}")
            for k in range(fetch.first, fetch.last + 1):
                if (fetch.group, k) in chunks:
                    continue
                start = int(group.offset[k]) - fetch.start
                if start < 0 or start + int(group.length[k]) > len(view):
                    continue
                chunks[fetch.group, k] = self._open_one(group, k, view[start : start + int(group.length[k])])

    def _open_one(self, group: GroupLayout, k: int, view: memoryview) -> OpenChunk:
        where = f"episode {self.key}: group {group.name}, chunk {k} ({group.t_first_ns[k]} ns)"
        chunk = open_chunk(
            view,
            where=where,
            t_first_ns=int(group.t_first_ns[k]),
            t_last_ns=int(group.t_last_ns[k]),
            crc=None if group.crc32 is None else int(group.crc32[k]),
            must_have_crc=self._strict,
            into=scratch(),
        )
        if group.counts is not None:
            self._check_counts(group, group.counts, k, chunk, where)
        return chunk

    @staticmethod
    def _check_counts(group: GroupLayout, counts: NDArray[np.int64], k: int, chunk: OpenChunk, where: str) -> None:
        expected = counts[:, k]
        if len(chunk.time) != int(expected.sum()):
            raise CorruptError(f"{where}: {len(chunk.time)} messages, the layout says {int(expected.sum())}")
        before = counts[:, :k].sum(axis=1)
        if chunk.period and _sequences_fit(group, expected, before, chunk):
            return
        for topic, n, start in zip(group.topics, expected.tolist(), before.tolist(), strict=True):
            mine = chunk.sequence[chunk.channel == topic.channel_id]
            if len(mine) != n:
                raise CorruptError(f"{where}: {len(mine)} messages of {topic.topic}, the layout says {n}")
            if n and not (mine == np.arange(start + 1, start + 1 + n) % (1 << 32)).all():
                raise CorruptError(
                    f"{where}: sequence of {topic.topic} is {int(mine[0])}..{int(mine[-1])}, expected "
                    f"{start + 1}..{start + n}: messages are missing or belong elsewhere"
                )

    def _one_gop(self, group: GroupLayout) -> bool:
        return self._strict and group.gop_chunk is None

    # -- answers

    def _answer(
        self,
        windows: Sequence[Window],
        chunks: dict[tuple[int, int], OpenChunk],
        out: Mapping[str, NDArray[np.uint8]],
    ) -> tuple[dict[str, Answer], dict[int, set[int]]]:
        """Answers, or which chunks are needed besides (group -> chunks)."""
        chosen = []
        more: dict[int, set[int]] = {}
        for window in windows:
            g, position = self._at[window.topic]
            group = self.layout.groups[g]
            held = sorted(k for h, k in chunks if h == g)
            messages = Messages.gather(group.topics[position].channel_id, held, [chunks[g, k] for k in held])
            picked, pad, need = _select(group, position, window, messages, held)
            if not need and group.topics[position].kind is TopicKind.VIDEO and len(picked):
                need = _missing_start(group, position, messages, picked, held, one_gop=self._one_gop(group))
            if need:
                more.setdefault(g, set()).update(need)
            chosen.append((window, group, group.topics[position], messages, picked, pad))
        if more:
            return {}, more
        answers: dict[str, Answer] = {}
        for window, group, topic, messages, picked, pad in chosen:
            where = f"episode {self.key}: group {group.name}, topic {topic.topic}"
            video = self._video._replace(out=out.get(window.key), one_gop=self._one_gop(group))
            data = read_content(topic, messages, picked, len(pad), where=where, video=video)
            time = messages.time[picked] if len(picked) else np.zeros(len(pad), np.int64)
            answers[window.key] = (time, data, pad)
        return answers, {}


def _sequences_fit(
    group: GroupLayout, expected: NDArray[np.int64], before: NDArray[np.int64], chunk: OpenChunk
) -> bool:
    """Whether a chunk of regular rounds holds just the sequence numbers that it should; all topics at once."""
    rounds = len(chunk.time) // chunk.period
    lane = {channel: i for i, channel in enumerate(chunk.channel[: chunk.period].tolist())}
    first = [0] * chunk.period
    for topic, n, start in zip(group.topics, expected.tolist(), before.tolist(), strict=True):
        i = lane.pop(topic.channel_id, None)
        if n != (0 if i is None else rounds):
            return False
        if i is not None:
            first[i] = start + 1
    if lane or max(first) + rounds >= 1 << 32:
        return False
    table = chunk.sequence.reshape(rounds, chunk.period)
    return bool((table == np.array(first) + np.arange(rounds)[:, None]).all())


def _filled(group: GroupLayout, position: int) -> NDArray[np.int64] | None:
    """Chunks that hold the topic; None where all do, or where nobody counted (then all may)."""
    if group.counts is None or group.full:
        return None
    return np.flatnonzero(group.counts[position])


def _chunks_of(group: GroupLayout, position: int, window: Window) -> set[int]:
    """The chunks that a window needs, as far as the layout tells."""
    n = len(group)
    if n == 0:
        return set()
    if window.step_range is not None:
        return _chunks_of_steps(group, position, window.step_range)
    filled = _filled(group, position)
    if filled is not None and len(filled) == 0:
        return set()
    if window.span_ns is not None:
        start, end = window.span_ns
        inside = np.flatnonzero((group.t_last_ns >= start) & (group.t_first_ns < end))
        return set((inside if filled is None else np.intersect1d(inside, filled)).tolist())
    t_first = group.t_first_ns if filled is None else group.t_first_ns[filled]
    t_last = group.t_last_ns if filled is None else group.t_last_ns[filled]
    query = np.array(window.times_ns, np.int64)
    picked = _ordered(group, t_first, query) if group.in_order else _unordered(t_first, t_last, query)
    if window.pick == "nearest":
        rate = group.topics[position].rate_hz
        period = int(1e9 / rate) if rate else None
        last = len(t_first) - 1
        for t in window.times_ns:
            at = max(int(np.searchsorted(t_first, t, "right")) - 1, 0) if group.in_order else max(picked)
            if at < last and (period is None or t > int(t_last[at]) - period):
                picked.add(at + 1)
    return picked if filled is None else set(filled[list(picked)].tolist())


def _ordered(group: GroupLayout, t_first: NDArray[np.int64], query: NDArray[np.int64]) -> set[int]:
    """Where the last message at or before each time may lie, in a group whose chunks follow each other."""
    at = np.searchsorted(t_first, query, "right") - 1
    found = set(at.tolist())
    if group.skew_ns:
        near = at[(at > 0) & (query - t_first[at] < group.skew_ns)]
        found.update((near - 1).tolist())
    if -1 in found:
        found.discard(-1)
        found.add(0)
    return found


def _unordered(t_first: NDArray[np.int64], t_last: NDArray[np.int64], query: NDArray[np.int64]) -> set[int]:
    """The same where chunks overlap in time, because of late messages or unaligned cameras."""
    found: set[int] = set()
    for t in query.tolist():
        whole = t_last[t_last <= t]
        latest = int(whole.max()) if len(whole) else int(t_first.min())
        found.update(np.flatnonzero((t_first <= t) & (t_last >= latest)).tolist() or [int(t_first.argmin())])
    return found


def _chunks_of_steps(group: GroupLayout, position: int, steps: tuple[int, int, int]) -> set[int]:
    if group.counts is None:
        raise UsageError(
            f"group {group.name}: steps need a layout with message counts; ask by time, or repack the file"
        )
    ends = np.cumsum(group.counts[position])
    total = int(ends[-1])
    if total == 0:
        return set()
    numbers = np.clip(steps[0] + steps[2] * np.arange(steps[1]), 0, total - 1)
    return set(np.searchsorted(ends, numbers, "right").tolist())


_NONE: Final = np.empty(0, np.int64)


def _select(
    group: GroupLayout, position: int, window: Window, messages: Messages, held: list[int]
) -> tuple[NDArray[np.int64], NDArray[np.bool_], set[int]]:
    """(index into messages per answer, padding, chunks that are needed besides)."""
    if window.step_range is not None:
        return _select_steps(group, position, window.step_range, messages)
    time = messages.time
    order: NDArray[np.int64] | None = None
    if not (messages.in_order and group.in_order):
        order = np.argsort(time, kind="stable")
        time = time[order]
    if window.span_ns is not None:
        low, high = np.searchsorted(time, window.span_ns).tolist()
        picked = np.arange(low, high)
        return (picked if order is None else order[picked]), np.zeros(high - low, np.bool_), set()
    query = np.array(window.times_ns, np.int64)
    at = np.searchsorted(time, query, "right") - 1
    early = bool((at < 0).any())
    if early or not len(time):
        need = _earlier(group, position, held)
        if need or not len(time):
            return _NONE, np.ones(len(query), np.bool_), need
    picked = np.maximum(at, 0) if early else at
    pad = at < 0
    if window.pick == "nearest":
        after = np.minimum(picked + 1, len(time) - 1)
        picked = np.where(np.abs(time[after] - query) < np.abs(query - time[picked]), after, picked)
        pad = np.zeros(len(query), np.bool_)
    if window.tolerance_ns is not None:
        pad = pad | (np.abs(query - time[picked]) > window.tolerance_ns)
    else:
        end = int(group.t_last_ns.max())
        if max(window.times_ns) > end:
            rate = group.topics[position].rate_hz
            pad = pad | ((query > end) & (query - time[picked] > (int(1e9 / rate) if rate else 0)))
        if window.pick == "nearest":
            pad = pad | (query < int(group.t_first_ns.min()))
    return (picked if order is None else order[picked]), pad, set()


def _select_steps(
    group: GroupLayout, position: int, steps: tuple[int, int, int], messages: Messages
) -> tuple[NDArray[np.int64], NDArray[np.bool_], set[int]]:
    first, count, stride = steps
    numbers = first + stride * np.arange(count)
    total = int(group.counts[position].sum()) if group.counts is not None else 0
    pad = (numbers < 0) | (numbers >= total)
    if total == 0:
        return _NONE, pad, set()
    wanted = np.clip(numbers, 0, total - 1) + 1  # sequence numbers start at 1
    order = np.argsort(messages.sequence, kind="stable")
    return order[np.searchsorted(messages.sequence[order], wanted)], pad, set()


def _earlier(group: GroupLayout, position: int, held: list[int]) -> set[int]:
    """The chunk before those at hand that holds the topic, if there is one."""
    filled = _filled(group, position)
    numbers = np.arange(len(group)) if filled is None else filled
    before = numbers[numbers < held[0]] if held else numbers[:1]
    return {int(before[-1])} if len(before) else set()


def _missing_start(
    group: GroupLayout, position: int, messages: Messages, picked: NDArray[np.int64], held: list[int], *, one_gop: bool
) -> set[int]:
    """The chunk before, where a wanted frame's GOP starts earlier than what is at hand."""
    wanted = picked.tolist() if len(picked) == 1 else sorted(set(picked.tolist()))
    for index, start in zip(wanted, messages.gop_starts(wanted, one_gop=one_gop), strict=True):
        if start is None:
            chunk = int(messages.chunk[index])
            need = _earlier(group, position, [k for k in held if k >= chunk])
            while need and need <= set(held):
                need = _earlier(group, position, sorted(need))
            return need
    return set()
