"""How many messages of each topic lie in each chunk of a group.

Kept as run lengths, as receipts and packed layouts carry them: a regular recording has one or two runs a topic, of
which a reader takes the few numbers that it needs without a table of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from kinemill.errors import CorruptError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Counts", "expand_runs", "index_bytes", "run_lengths"]

_FEW: Final = 8
"""Runs up to which going through them is faster than a table."""
_MOST: Final = 1 << 40


def run_lengths(column: Sequence[int] | NDArray[np.int64]) -> tuple[int, ...]:
    """`value, times, value, times, ...`"""
    values = np.asarray(column, np.int64)
    if not len(values):
        return ()
    starts = np.flatnonzero(np.diff(values, prepend=values[0] - 1))
    times = np.diff(starts, append=len(values))
    return tuple(np.stack([values[starts], times], axis=1).ravel().tolist())


def expand_runs(runs: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """The column that `run_lengths` was given."""
    pairs = np.asarray(runs, np.int64).reshape(-1, 2)
    return np.repeat(pairs[:, 0], pairs[:, 1])


def index_bytes(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Bytes that the message indexes behind each chunk take: 15 a topic that is present, 16 a message."""
    found: NDArray[np.int64] = 15 * (counts > 0).sum(axis=0) + 16 * counts.sum(axis=0)
    return found


class Counts:
    """Messages of some topics, chunk by chunk.

    Args:
        runs: Of each topic: value, times, value, times, ...
        chunks: How many; the times of each topic add up to it.

    Attributes:
        runs: As given.
        full: Every topic has messages in every chunk.

    Raises:
        CorruptError: The runs are no counts of so many chunks.
    """

    __slots__ = ("_ends", "_even", "_few", "_table", "full", "runs")

    def __init__(self, runs: Sequence[Sequence[int]], chunks: int) -> None:
        self.runs = runs
        self._table: NDArray[np.int64] | None = None
        self._ends: NDArray[np.int64] | None = None
        self._even: list[int] = []
        """The count of each topic, where that is the same in every chunk: as a regular recording has it."""
        self.full = self._few = True
        if [list(run[1:]) for run in runs] == [[chunks]] * len(runs):
            even = [run[0] for run in runs]
            if chunks > 0 and min(even, default=0) > 0 and max(even) <= _MOST:
                self._even = even
                return
        for run in runs:
            values, times = run[::2], run[1::2]
            least = min(values, default=0)
            sound = sum(times) == chunks and min(times, default=1) > 0 and len(values) == len(times)
            if not sound or least < 0 or max(values, default=0) > _MOST:
                raise CorruptError(f"message counts do not cover {chunks} chunks")
            self.full = self.full and least > 0
            self._few = self._few and len(times) <= _FEW

    @classmethod
    def of(cls, table: NDArray[np.int64]) -> Counts:
        """Of a table, int64 [topics, chunks]."""
        return cls([run_lengths(row) for row in table], table.shape[1])

    @property
    def table(self) -> NDArray[np.int64]:
        """Messages, int64 [topics, chunks]."""
        if self._table is None:
            self._table = np.stack([expand_runs(run) for run in self.runs])
        return self._table

    @property
    def ends(self) -> NDArray[np.int64]:
        """Messages up to the end of each chunk, int64 [topics, chunks]."""
        if self._ends is None:
            self._ends = np.add.accumulate(self.table, 1)
        return self._ends

    def total(self, position: int) -> int:
        """Messages of a topic."""
        run = self.runs[position]
        return sum([value * times for value, times in zip(run[::2], run[1::2], strict=True)])

    def at(self, chunk: int) -> tuple[list[int], list[int]]:
        """(messages of each topic in a chunk, messages of each before it)."""
        if self._even:
            return self._even, [n * chunk for n in self._even]
        if not self._few:
            inside: list[int] = self.table[:, chunk].tolist()
            return inside, [end - n for end, n in zip(self.ends[:, chunk].tolist(), inside, strict=True)]
        inside, before = [], []
        for run in self.runs:
            seen, left = 0, chunk
            for i in range(0, len(run), 2):
                value, times = run[i], run[i + 1]
                if left < times:
                    break
                seen += value * times
                left -= times
            inside.append(value)
            before.append(seen + value * left)
        return inside, before
