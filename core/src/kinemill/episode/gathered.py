"""The messages of one topic, gathered from verified chunks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kinemill.episode import wire
from kinemill.episode.h264 import first_slice_is_idr
from kinemill.episode.opened import OpenChunk
from kinemill.episode.proto import video_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Messages"]

_HEAD = wire.MESSAGE_HEAD.size


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

    __slots__ = ("_chunk", "_chunks", "_end", "_frames", "_idr", "_mine", "_numbers", "_offset", "in_order", "time")

    def __init__(self, channel: int, numbers: Sequence[int], chunks: Sequence[OpenChunk]) -> None:
        self._numbers = numbers
        self._chunks = chunks
        self._mine = [c.of(channel) for c in chunks]
        self._idr: dict[int, bool] = {}
        self._frames: dict[int, tuple[memoryview, str]] = {}
        self._chunk: NDArray[np.int64] | None = None
        if len(chunks) == 1:
            one, mine = chunks[0], self._mine[0]
            self.time, self._offset, self._end = one.time[mine], one.offset[mine], one.end[mine]
            self.in_order = one.in_order
            return
        self.time = self._joined([c.time[m] for c, m in zip(chunks, self._mine, strict=True)])
        self._offset = self._joined([c.offset[m] for c, m in zip(chunks, self._mine, strict=True)])
        self._end = self._joined([c.end[m] for c, m in zip(chunks, self._mine, strict=True)])
        self.in_order = all(c.in_order for c in chunks)

    @staticmethod
    def _joined(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
        return np.concatenate(parts or [np.empty(0, np.int64)])

    @property
    def sequence(self) -> NDArray[np.int64]:
        """Sequence numbers."""
        return self._joined([c.sequence[m] for c, m in zip(self._chunks, self._mine, strict=True)])

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
        return self._chunks[self._at(index)].data[int(self._offset[index]) + _HEAD : int(self._end[index])]

    def by_chunk(
        self, picked: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64], memoryview, NDArray[np.int64], NDArray[np.int64]]]:
        """Picked messages in runs of one chunk: their indices, the chunk's records, where payloads start and end."""
        if len(self._chunks) == 1:
            return [(picked, self._chunks[0].data, self._offset[picked] + _HEAD, self._end[picked])]
        place = self._place[picked]
        edges = (np.flatnonzero(place[1:] != place[:-1]) + 1).tolist()
        runs = []
        for low, high in zip([0, *edges], [*edges, len(picked)], strict=True):
            part = picked[low:high]
            data = self._chunks[int(place[low])].data
            runs.append((part, data, self._offset[part] + _HEAD, self._end[part]))
        return runs

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
