"""From a sample's number to (row, step), without a list of samples: block sums over the frames column.

A manifest of 20 M rows has 10^10 samples. Two levels of counts are enough: sums of blocks of rows
(kept, 40 KB for 20 M rows) and the counts inside one block (computed from the mapped column when
asked, a few kept).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.records import nearest

if TYPE_CHECKING:
    from kinemill.loaders.manifest import Manifest

__all__ = ["SampleIndex", "Where"]

BLOCK_ROWS = 4096
BLOCKS_KEPT = 64
Ints = npt.NDArray[np.int64]
Count = Callable[[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]], Ints]
Where = Mapping[str, str | Sequence[str]]
"""Dictionary column -> the word or words that pass, such as `{"split": "train"}`."""

_FILTERS = ("profile", "vendor", "robot", "task", "instruction", "split")


class SampleIndex:
    """How many samples each row has, and which row a sample lies in.

    Pickles as what it was made from; the sums are made again in the other process, in some
    nanoseconds per row.
    """

    def __init__(self, manifest: Manifest, count: Count, *, where: Where | None = None, unit: int = 1) -> None:
        """Sum the counts of all blocks.

        Args:
            manifest: The rows.
            count: (frames (n,) int32, fps (n,) float32, duration_ns (n,) int64) -> samples (n,) int64. Picklable.
            where: Rows that do not pass have no samples.
            unit: Samples that share a fetch; a row's count is rounded up to whole units, the last
                unit overlapping the one before.

        Raises:
            UsageError: A filter on a column that cannot be filtered on.
        """
        self.manifest = manifest
        self.count = count
        self.where = {k: [v] if isinstance(v, str) else list(v) for k, v in (where or {}).items()}
        for name in self.where:
            if name not in _FILTERS:
                hint = nearest(name, _FILTERS)
                raise UsageError(
                    f"where: no filter on '{name}'"
                    + (f"; did you mean '{hint}'?" if hint else f"; there are {', '.join(_FILTERS)}")
                )
        self.unit = unit
        self._ends: Ints | None = None
        self._kept: OrderedDict[int, Ints] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {k: getattr(self, k) for k in ("manifest", "count", "where", "unit")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._ends = None
        self._kept = OrderedDict()

    @property
    def _sums(self) -> Ints:
        """Running ends of units over blocks, summed on first use."""
        if self._ends is None:
            sums = [self._units(*block).sum(dtype=np.int64) for block in self._blocks()]
            self._ends = np.cumsum(np.asarray(sums, np.int64))
        return self._ends

    def _blocks(self) -> list[tuple[int, int]]:
        rows = len(self.manifest)
        return [(lo, min(rows, lo + BLOCK_ROWS)) for lo in range(0, rows, BLOCK_ROWS)]

    def _counts(self, lo: int, hi: int) -> Ints:
        """Samples of rows [lo, hi)."""
        found: list[Ints] = []
        for view, first, last in self.manifest.slice(lo, hi).parts():
            part = self.count(*(view.array(name)[first:last] for name in ("frames", "fps", "duration_ns")))
            for name, words in self.where.items():
                known = view.words(name)
                codes = [i for i, word in enumerate(known) if word in words]
                part = np.where(np.isin(view.array(name)[first:last], codes), part, 0)
            found.append(np.maximum(part, 0).astype(np.int64))
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def _units(self, lo: int, hi: int) -> Ints:
        return -(-self._counts(lo, hi) // self.unit)

    @property
    def units(self) -> int:
        """Units in all rows."""
        sums = self._sums
        return int(sums[-1]) if len(sums) else 0

    def __len__(self) -> int:
        """Samples in all rows, the overlap of last units counted."""
        return self.units * self.unit

    def _inside(self, block: int) -> Ints:
        """Running ends of units in a block."""
        found = self._kept.get(block)
        if found is None:
            lo = block * BLOCK_ROWS
            found = np.cumsum(self._units(lo, min(len(self.manifest), lo + BLOCK_ROWS)))
            self._kept[block] = found
            while len(self._kept) > BLOCKS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(block)
        return found

    def find(self, sample: int) -> tuple[int, int]:
        """(row, step) of a sample: step counts the row's samples from 0.

        Raises:
            IndexError: No such sample.
        """
        sums = self._sums
        unit, member = divmod(int(sample), self.unit)
        if not 0 <= unit < self.units:
            raise IndexError(f"sample {sample} of {len(self)}")
        block = int(np.searchsorted(sums, unit, side="right"))
        inside = unit - (int(sums[block - 1]) if block else 0)
        ends = self._inside(block)
        row = int(np.searchsorted(ends, inside, side="right"))
        turn = inside - (int(ends[row - 1]) if row else 0)
        at = block * BLOCK_ROWS + row
        if self.unit == 1:
            return at, turn
        has = int(self._counts(at, at + 1)[0])
        first = max(0, min(turn * self.unit, has - self.unit))
        return at, min(first + member, has - 1)

    def first_row(self) -> int | None:
        """The first row that has samples; None where none has. Looks no further than it."""
        for lo, hi in self._blocks():
            found = np.flatnonzero(self._counts(lo, hi))
            if len(found):
                return lo + int(found[0])
        return None

    def first_of_row(self, row: int) -> int:
        """The number of the first sample of a row (unit 1 only counts samples exactly)."""
        block, inside = divmod(row, BLOCK_ROWS)
        before = int(self._sums[block - 1]) if block else 0
        return (before + (int(self._inside(block)[inside - 1]) if inside else 0)) * self.unit
