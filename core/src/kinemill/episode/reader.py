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
from kinemill.episode.choose import chunks_of, missing_start, select
from kinemill.episode.content import VideoOptions, read_content
from kinemill.episode.decode import SHARED, DecoderPool, PixelFormat
from kinemill.episode.gathered import Messages
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
                chunks = chunks_of(group, where[1], window)
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
        t_first_ns = int(group.t_first_ns[k])
        where = f"episode {self.key}: group {group.name}, chunk {k} ({t_first_ns} ns)"
        chunk = open_chunk(
            view,
            where=where,
            t_first_ns=t_first_ns,
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
        expected: list[int] = counts[:, k].tolist()
        if len(chunk.time) != sum(expected):
            raise CorruptError(f"{where}: {len(chunk.time)} messages, the layout says {sum(expected)}")
        before = [end - n for end, n in zip(group.ends[:, k].tolist(), expected, strict=True)]
        if _sequences_fit(group, expected, before, chunk):
            return
        for topic, n, start in zip(group.topics, expected, before, strict=True):
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
        held_of: dict[int, list[int]] = {}
        more: dict[int, set[int]] = {}
        for window in windows:
            g, position = self._at[window.topic]
            group = self.layout.groups[g]
            held = held_of.get(g)
            if held is None:
                held = held_of[g] = sorted(k for h, k in chunks if h == g)
            messages = Messages(group.topics[position].channel_id, held, [chunks[g, k] for k in held])
            picked, pad, need = select(group, position, window, messages, held)
            if not need and group.topics[position].kind is TopicKind.VIDEO and len(picked):
                need = missing_start(group, position, messages, picked, held, one_gop=self._one_gop(group))
            if need:
                more.setdefault(g, set()).update(need)
            chosen.append((window, group, group.topics[position], messages, picked, pad))
        if more:
            return {}, more
        answers: dict[str, Answer] = {}
        for window, group, topic, messages, picked, pad in chosen:
            where = f"episode {self.key}: group {group.name}, topic {topic.topic}"
            video = self._video
            if topic.kind is TopicKind.VIDEO:
                video = video._replace(out=out.get(window.key), one_gop=self._one_gop(group))
            data = read_content(topic, messages, picked, len(pad), where=where, video=video)
            time = messages.time[picked] if len(picked) else np.zeros(len(pad), np.int64)
            answers[window.key] = (time, data, pad)
        return answers, {}


def _sequences_fit(group: GroupLayout, expected: list[int], before: list[int], chunk: OpenChunk) -> bool:
    """Whether a chunk of regular rounds holds just the sequence numbers that it should; all topics at once."""
    lanes = chunk.lanes
    first = chunk.counts_from()
    if first is None:
        return False
    rounds = len(chunk.time) // len(lanes)
    filled = 0
    for topic, n, start in zip(group.topics, expected, before, strict=True):
        if topic.channel_id in lanes:
            filled += 1
            if n != rounds or first[lanes.index(topic.channel_id)] != start + 1:
                return False
        elif n:
            return False
    return filled == len(lanes) and max(first) + rounds < 1 << 32
