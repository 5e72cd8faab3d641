"""Statistics of a state topic applied per column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.manifest.statistics import TopicStatistics

__all__ = ["Normaliser"]

_FLOOR = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class Normaliser:
    """(x - shift) / scale per column, float32; `undo` is its inverse. Constant columns become 0.

    Attributes:
        shift: (columns,) float32.
        scale: (columns,) float32, never 0.
    """

    shift: npt.NDArray[np.float32]
    scale: npt.NDArray[np.float32]

    @classmethod
    def make(cls, statistics: TopicStatistics, mode: str = "mean_std") -> Normaliser:
        """Choose the range.

        Args:
            statistics: Of the topic.
            mode: `mean_std` (to mean 0, deviation 1), `min_max` or `quantile` (to [-1, 1]; 1st to 99th percentile).

        Raises:
            UsageError: No such mode.
        """
        match mode:
            case "mean_std":
                shift, scale = statistics.mean, statistics.std
            case "min_max":
                shift, scale = (statistics.min + statistics.max) / 2, (statistics.max - statistics.min) / 2
            case "quantile":
                shift, scale = (statistics.q01 + statistics.q99) / 2, (statistics.q99 - statistics.q01) / 2
            case _:
                raise UsageError(f"normalise {mode!r}: mean_std, min_max or quantile")
        safe = np.where(np.abs(scale) < _FLOOR, 1.0, scale)
        return cls(shift.astype(np.float32), safe.astype(np.float32))

    def __call__(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(..., columns) to the same, normalised."""
        return (values - self.shift) / self.scale

    def undo(self, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Back to the topic's own units, for what a policy puts out."""
        return values * self.scale + self.shift
