"""The messages of one topic, gathered from verified chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from kinemill.episode import wire
from kinemill.episode.h264 import first_slice_is_idr
from kinemill.episode.opened import OpenChunk
from kinemill.episode.proto import video_bytes

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
        "_channel", "_chunk", "_chunks", "_found", "_frames", "_idr", "_mine", "_numbers", "_payloads", "in_order",
        "time",
    )  # fmt: skip

    def __init__(self, channel: int, numbers: Sequence[int], chunks: Sequence[OpenChunk]) -> None:
        self._channel = channel
        self._numbers = numbers
        self._chunks = chunks
        self._mine = [c.of(channel) for c in chunks]
        self._idr: dict[int, bool] = {}
        self._frames: dict[int, tuple[memoryview, str]] = {}
        self._chunk: NDArray[np.int64] | None = None
        self._payloads: tuple[list[int], list[int]] | None = None
        self._found: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None
        if len(chunks) == 1:
            self.time, self.in_order = chunks[0].time[self._mine[0]], chunks[0].in_order
        else:
            self.time = self._joined([c.time[m] for c, m in zip(chunks, self._mine, strict=True)])
            self.in_order = all(c.in_order for c in chunks)

    @property
    def _places(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where each record starts and ends in its chunk."""
        if self._found is None:
            parts = [c.records[:2, m] for c, m in zip(self._chunks, self._mine, strict=True)]
            both = parts[0] if len(parts) == 1 else np.concatenate(parts or [np.empty((2, 0), np.int64)], axis=1)
            self._found = (both[0], both[1])
        return self._found

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

    @property
    def _place(self) -> NDArray[np.int64]:
        """Which of the chunks at hand each message lies in."""
        if self._chunk is None:
            sizes = [len(c.time[m]) for c, m in zip(self._chunks, self._mine, strict=True)]
            self._chunk = np.arange(len(sizes)).repeat(sizes)
        return self._chunk

    def _at(self, index: int) -> int:
        return 0 if len(self._chunks) == 1 else int(self._place[index])

    def chunk_of(self, index: int) -> int:
        """Number of the chunk that a message lies in."""
        return self._numbers[self._at(index)]

    def payload(self, index: int) -> memoryview:
        """Of one message."""
        start, end = self._payloads or self._list_payloads()
        return self._chunks[self._at(index)].data[start[index] : end[index]]

    def _list_payloads(self) -> tuple[list[int], list[int]]:
        """Where each payload starts and ends, as Python takes single ones faster."""
        offset, end = self._places
        self._payloads = ((offset + _HEAD).tolist(), end.tolist())
        return self._payloads

    def by_chunk(self, picked: NDArray[np.int64]) -> list[Run]:
        """Picked messages in runs of one chunk."""
        if len(self._chunks) == 1:
            return [self._run(0, picked, 0)]
        place = self._place[picked]
        edges = (np.flatnonzero(place[1:] != place[:-1]) + 1).tolist()
        runs = []
        for low, high in zip([0, *edges], [*edges, len(picked)], strict=True):
            chunk = int(place[low])
            runs.append(self._run(chunk, picked[low:high], int(self._place.searchsorted(chunk))))
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

    def frame(self, index: int) -> tuple[memoryview, str]:
        """Data and format of a camera's message."""
        found = self._frames.get(index)
        if found is None:
            found = self._frames[index] = video_bytes(self.payload(index))
        return found

    def is_idr(self, index: int) -> bool:
        """Whether a camera's message is an IDR frame."""
        found = self._idr.get(index)
        if found is None:
            found = self._idr[index] = first_slice_is_idr(self.frame(index)[0])
        return found

    def gop_starts(self, indices: Sequence[int], *, one_gop: bool) -> list[int | None]:
        """For each index, increasing, the IDR that the frame depends on; None where that is not at hand.

        With `one_gop`, chunks hold one GOP, so that it is the topic's first frame in the chunk.
        """
        if one_gop and (len(self._chunks) == 1 or self._place[0] == self._place[-1]):
            return [0 if self.is_idr(0) else None] * len(indices)
        if one_gop:
            place = self._place
            firsts = np.searchsorted(place, place[np.asarray(indices, np.int64)]).tolist()
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
