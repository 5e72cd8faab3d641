"""Read windows of an episode: one ranged read per topic group, verified, then decoded.

With a layout in hand (from a manifest or a receipt) nothing but the wanted chunks is fetched: no
footer, no index. Reading is split in three so that a loader can overlap it: `plan` says which
byte ranges, the store fetches them, `decode` checks and decodes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from kinemill.contracts.episode import Receipt, TopicReceipt
from kinemill.contracts.store import Store
from kinemill.episode.choose import chunks_of, frames_of, select
from kinemill.episode.content import VideoOptions, has_pictures, read_content
from kinemill.episode.counts import Counts
from kinemill.episode.decode import SHARED, DecoderPool, Lent
from kinemill.episode.gathered import Messages
from kinemill.episode.layout import GroupLayout, Layout
from kinemill.episode.opened import MAX_RAW, open_chunk
from kinemill.episode.pixels import PixelFormat
from kinemill.episode.scratch import scratch
from kinemill.episode.walk import OpenChunk
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
MAX_UNPACKED: Final = 2 << 30
"""Nor do the chunks of one call unpack to more than this: many small ones may each claim a gigabyte."""
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
        self._pool = pool
        self._decoder = decoder
        self._pixel_format = pixel_format
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
        known: dict[tuple[int, tuple[int, ...]], set[int]] = {}
        keys = set()
        for window in windows:
            keys.add(window.key)
            where = self._at.get(window.topic)
            if where is None:
                close = nearest(window.topic, self._at)
                raise UsageError(
                    f"episode {self.key} has no topic {window.topic}" + (f"; did you mean {close}?" if close else "")
                )
            g, position = where
            group = self.layout.groups[g]
            chunks = None
            # in a group whose chunks all hold all topics, windows of the same times need the same chunks
            shared = group.full and window.pick == "before" and bool(window.times_ns)
            if shared:
                chunks = known.get((g, window.times_ns))
            if chunks is None:
                chunks = chunks_of(group, position, window)
                if shared:
                    known[g, window.times_ns] = chunks
            if g in wanted:
                wanted[g] |= chunks
            else:
                wanted[g] = set(chunks)
        if len(keys) < len(windows):
            twice = [key for key, n in Counter(w.key for w in windows).items() if n > 1]
            raise UsageError(f"two windows with the key {twice[0]}; give one a name")
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
        for g, numbers in sorted(wanted.items()):
            group = self.layout.groups[g]
            run: list[int] = []
            for k in sorted(numbers, key=group.offset.item) if len(numbers) > 1 else numbers:
                start = int(group.offset[k])
                if run and start - run[3] <= MERGE_GAP and k >= run[1]:
                    run[1], run[3] = k, start + int(group.length[k])
                    continue
                if run:
                    out.append(Fetch(g, run[0], run[1], run[2], run[3] - run[2]))
                run = [k, k, start, start + int(group.length[k])]
            if run:
                out.append(Fetch(g, run[0], run[1], run[2], run[3] - run[2]))
        total = sum([f.length for f in out])
        if total > MAX_READ:
            raise LimitError(f"episode {self.key}: {total >> 20} MiB for one read; the bound is {MAX_READ >> 20}")
        return tuple(out)

    def _open(
        self, fetches: Sequence[Fetch], blobs: Sequence[bytes | memoryview], chunks: dict[tuple[int, int], OpenChunk]
    ) -> None:
        if len(fetches) != len(blobs):
            raise UsageError(f"{len(blobs)} blobs for {len(fetches)} ranges")
        room = MAX_UNPACKED - sum(len(chunk.data) for chunk in chunks.values())
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
                chunk = self._open_one(group, k, view[start : start + int(group.length[k])], room)
                room -= len(chunk.data)
                chunks[fetch.group, k] = chunk

    def _open_one(self, group: GroupLayout, k: int, view: memoryview, room: int) -> OpenChunk:
        t_first_ns = int(group.t_first_ns[k])
        where = f"episode {self.key}: group {group.name}, chunk {k} ({t_first_ns} ns)"
        chunk = open_chunk(
            view,
            where=where,
            t_first_ns=t_first_ns,
            t_last_ns=int(group.t_last_ns[k]),
            crc=None if group.crc32 is None else int(group.crc32[k]),
            must_have_crc=self._strict,
            limit=min(MAX_RAW, room),
            into=scratch(),
        )
        if group.counted is not None:
            self._check_counts(group, group.counted, k, chunk, where)
        return chunk

    @staticmethod
    def _check_counts(group: GroupLayout, counted: Counts, k: int, chunk: OpenChunk, where: str) -> None:
        expected, before = counted.at(k)
        if len(chunk.time) != sum(expected):
            raise CorruptError(f"{where}: {len(chunk.time)} messages, the layout says {sum(expected)}")
        first = [number + 1 for number in before]
        if _are_rounds(group, expected, first, chunk):
            return
        for topic, n, start in zip(group.topics, expected, first, strict=True):
            mine = chunk.sequence[chunk.of(topic.channel_id)]
            if len(mine) != n:
                raise CorruptError(f"{where}: {len(mine)} messages of {topic.topic}, the layout says {n}")
            if n and not (mine == np.arange(start, start + n) % (1 << 32)).all():
                raise CorruptError(
                    f"{where}: sequence of {topic.topic} is {int(mine[0])}..{int(mine[-1])}, expected "
                    f"{start}..{start + n - 1}: messages are missing or belong elsewhere"
                )

    # -- answers

    def _answer(
        self,
        windows: Sequence[Window],
        chunks: dict[tuple[int, int], OpenChunk],
        out: Mapping[str, NDArray[np.uint8]],
    ) -> tuple[dict[str, Answer], dict[int, set[int]]]:
        """Answers, or which chunks are needed besides (group -> chunks)."""
        chosen = []
        at_hand: dict[int, tuple[list[int], list[OpenChunk]]] = {}
        more: dict[int, set[int]] = {}
        for window in windows:
            g, position = self._at[window.topic]
            group = self.layout.groups[g]
            topic = group.topics[position]
            if g not in at_hand:
                held = sorted([k for h, k in chunks if h == g])
                at_hand[g] = held, [chunks[g, k] for k in held]
            held, opened = at_hand[g]
            messages = Messages(topic.channel_id, held, opened)
            picked, pad, need = select(group, position, window, messages, held)
            where = f"episode {self.key}: group {group.name}, topic {topic.topic}"
            frames = None
            if not need and has_pictures(topic) and len(picked):
                one_gop = self._strict and group.gop_chunk is None
                try:
                    frames, need = frames_of(group, position, messages, picked, held, one_gop=one_gop)
                except CorruptError as exc:
                    raise CorruptError(f"{where}: {exc}") from exc
            if need:
                more.setdefault(g, set()).update(need)
            chosen.append((window.key, topic, messages, picked, pad, frames, where))
        if more:
            return {}, more
        video = VideoOptions(Lent(self._pool), self._decoder, self._pixel_format)
        answers: dict[str, Answer] = {}
        for key, topic, messages, picked, pad, frames, where in chosen:
            data = read_content(
                topic, messages, picked, len(pad), where=where, video=video, frames=frames, out=out.get(key)
            )
            time = messages.time[picked] if len(picked) else np.zeros(len(pad), np.int64)
            answers[key] = (time, data, pad)
        video.decoders.give_back()
        return answers, {}


def _are_rounds(group: GroupLayout, expected: list[int], first: list[int], chunk: OpenChunk) -> bool:
    """Whether a chunk is rounds of all topics in their order, numbered as expected: the commonest, told at once."""
    numbers = chunk.counts_from()
    if numbers is None or list(numbers) != first or len(set(expected)) != 1 or max(first) + expected[0] > 1 << 32:
        return False
    return chunk.lanes == tuple([topic.channel_id for topic in group.topics])
