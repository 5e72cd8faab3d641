"""Statistics of state topics, applied per column, or taken from a data set where the manifest brings none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.manifest.statistics import METADATA_KEY, TopicStatistics, dump_statistics, merge, parse_statistics

if TYPE_CHECKING:
    from kinemill.loaders.dataset import WindowedDataset

__all__ = [
    "METADATA_KEY",
    "Normaliser",
    "TopicStatistics",
    "compute_statistics",
    "dump_statistics",
    "merge",
    "parse_statistics",
]

_FLOOR = 1e-8


def compute_statistics(data: WindowedDataset, *, samples: int = 1024) -> dict[str, TopicStatistics]:
    """Of the state topics of a data set that does not normalise, from evenly spread samples; padding is left out.

    Args:
        data: `SparseWindows` with the state windows only (cameras would be decoded for nothing).
        samples: How many at most.

    Returns:
        By topic, for `statistics=` or for a manifest's metadata.

    Raises:
        UsageError: No sample could be read, or the data set normalises already.
    """
    rows = [one for one in data.fields if not one.video]
    if any(one.normaliser is not None or one.transform is not None for one in rows):
        raise UsageError("statistics of rows that are normalised or transformed already: make the set without")
    picks = np.unique(np.linspace(0, max(0, len(data) - 1), min(samples, len(data))).astype(np.int64)).tolist()
    found: dict[str, list[npt.NDArray[Any]]] = {one.topic: [] for one in rows}
    for at in range(0, len(picks), 64):
        batch = data.read(picks[at : at + 64]).batch
        for one in rows:
            keep = ~batch[f"{one.key}_is_pad"].numpy()
            found[one.topic].append(batch[one.key].numpy()[keep])
    whole = {topic: np.concatenate(parts) for topic, parts in found.items() if parts}
    if not whole or not all(len(values) for values in whole.values()):
        raise UsageError("no rows to take statistics of")
    return {topic: TopicStatistics.of(values) for topic, values in whole.items()}


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
