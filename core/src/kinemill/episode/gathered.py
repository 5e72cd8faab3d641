"""The messages of one topic, gathered from verified chunks."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kinemill.episode import wire
from kinemill.episode.h264 import first_slice_is_idr
from kinemill.episode.proto import video_bytes
from kinemill.episode.walk import OpenChunk
from kinemill.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Messages", "Run"]

_HEAD = wire.MESSAGE_HEAD.size
_NONE: Final = np.empty(0, np.int64)


class Run(NamedTuple):
    """Some messages of one chunk.

    Attributes:
        picked: Their indices, int64 [n].
        data: The chunk's records.
        even: Where the first payload starts, bytes from one start to the next, and bytes of each, where
            these are known to be the same for all; else None, and `places` tells where each starts and ends.
    """

    picked: NDArray[np.int64]
    data: memoryview
    even: tuple[int, int, int] | None
    places: tuple[NDArray[np.int64], NDArray[np.int64]] = (_NONE, _NONE)


class Messages:
    """One topic's messages in the chunks at hand, in file order.

    A sample gathers one for each of its windows, so nothing is made before it is asked for.

    Args:
        channel: Channel id.
        numbers: Chunk numbers, increasing.
        chunks: The chunks.

    Attributes:
        time: Log times, int64 [n].
        in_order: Times do not go back inside any chunk.
    """

    __slots__ = (
        "_channel", "_chunks", "_edges", "_mine", "_numbers", "_packets", "in_order", "time",
    )  # fmt: skip

    def __init__(self, channel: int, numbers: Sequence[int], chunks: Sequence[OpenChunk]) -> None:
        self._channel = channel
        self._numbers = numbers
        self._chunks = chunks
        self._mine = [c.of(channel) for c in chunks]
        self._packets: dict[int, memoryview] = {}
        # number of each chunk's first message, and of all messages
        self._edges: Sequence[int] = (0,)
        if len(chunks) == 1:
            self.time, self.in_order = chunks[0].time[self._mine[0]], chunks[0].in_order
            return
        times = [c.time[m] for c, m in zip(chunks, self._mine, strict=True)]
        self._edges = [0, *itertools.accumulate(map(len, times))]
        self.time = self._joined(times)
        self.in_order = all(c.in_order for c in chunks)

    @property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each record starts and ends in its chunk."""
        parts = [c.records[:2, m] for c, m in zip(self._chunks, self._mine, strict=True)]
        start, end = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
        return start, end

    @staticmethod
    def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate(parts or [np.empty(0, np.int64)])

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Sequence numbers."""
        return self._joined([c.sequence[m] for c, m in zip(self._chunks, self._mine, strict=True)])

    def numbered_from(self) -> int | None:
        """Sequence number of the first message, where they count up by one to the last; else None."""
        begin: int | None = None
        following = 0
        for chunk in self._chunks:
            first = chunk.counts_from()
            if first is None or self._channel not in chunk.lanes:
                return None
            number = first[chunk.lanes.index(self._channel)]
            if begin is None:
                begin = number
            elif number != following:
                return None
            following = number + len(chunk.time) // len(chunk.lanes)
        return begin

    def _at(self, index: int) -> int:
        """Which of the chunks at hand a message lies in."""
        return 0 if len(self._chunks) == 1 else bisect_right(self._edges, index) - 1

    def chunk_of(self, index: int) -> int:
        """Number of the chunk that a message lies in."""
        return self._numbers[self._at(index)]

    def payload(self, index: int) -> memoryview:
        """Of one message."""
        at = self._at(index)
        chunk, mine = self._chunks[at], self._mine[at]
        index -= self._edges[at]
        start, end = chunk.place(mine.start + index * mine.step if isinstance(mine, slice) else int(mine[index]))
        return chunk.data[start + _HEAD : end]

    def by_chunk(self, picked: NDArray[np.int64]) -> list[Run]:
        """Picked messages in runs of one chunk."""
        if len(self._chunks) == 1:
            return [self._run(0, picked, 0)]
        place = np.searchsorted(self._edges[1:], picked, "right")
        edges = (np.flatnonzero(place[1:] != place[:-1]) + 1).tolist()
        runs = []
        for low, high in zip([0, *edges], [*edges, len(picked)], strict=True):
            chunk = int(place[low])
            runs.append(self._run(chunk, picked[low:high], self._edges[chunk]))
        return runs

    def _run(self, chunk: int, picked: NDArray[np.int64], before: int) -> Run:
        """Of one chunk, before which so many of the topic's messages lie."""
        one = self._chunks[chunk]
        if one.rounds is not None and one.lanes and not np.count_nonzero(picked[1:] - picked[:-1] != 1):
            rounds, lane = one.rounds, one.lanes.index(self._channel)
            start = rounds.starts[lane] + _HEAD
            first = start + rounds.size * (int(picked[0]) - before)
            return Run(picked, one.data, (first, rounds.size, rounds.ends[lane] - start))
        offset, end = self._places
        return Run(picked, one.data, None, (offset[picked] + _HEAD, end[picked]))

    def packets(self, start: int, stop: int) -> list[memoryview]:
        """H.264 of a camera's messages of these indices.

        Raises:
            CorruptError: A message is no CompressedVideo of H.264.
        """
        known = self._packets
        found = []
        for index in range(start, stop):
            if index in known:
                found.append(known[index])
                continue
            at = self._at(index)
            chunk, mine, number = self._chunks[at], self._mine[at], index - self._edges[at]
            begin, end = chunk.place(mine.start + number * mine.step if isinstance(mine, slice) else int(mine[number]))
            packet, codec = video_bytes(chunk.data, begin + _HEAD, end)
            if codec != "h264":
                raise CorruptError(f"format {codec!r} in a stream of h264")
            known[index] = packet
            found.append(packet)
        return found

    def is_idr(self, index: int) -> bool:
        """Whether a camera's message is an IDR frame."""
        return first_slice_is_idr(self.packets(index, index + 1)[0])

    def gop_starts(self, indices: Sequence[int], *, one_gop: bool) -> list[int | None]:
        """For each index, increasing, the IDR that the frame depends on; None where that is not at hand.

        With `one_gop`, chunks hold one GOP, so that it is the topic's first frame in the chunk.
        """
        if one_gop:
            firsts = [self._edges[self._at(index)] for index in indices]
            return [first if self.is_idr(first) else None for first in firsts]
        found: list[int | None] = []
        start: int | None = None
        looked = -1
        for index in indices:
            at = index
            while at > looked:
                if self.is_idr(at):
                    start = at
                    break
                if at == 0 or self.chunk_of(at) - self.chunk_of(at - 1) > 1:  # chunks between are not at hand
                    start = None
                    break
                at -= 1
            looked = index
            found.append(start)
        return found
