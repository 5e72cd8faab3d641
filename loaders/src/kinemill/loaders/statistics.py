"""Statistics of state topics: from a manifest's metadata, merged over mixtures, applied per column."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.errors import ContractError, UsageError

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

METADATA_KEY = "kinemill.manifest.statistics"
"""Schema metadata of a manifest: JSON, topic -> {count, mean, std, min, max, q01, q99}, a number per column."""

Floats = npt.NDArray[np.float64]
_COLUMNS = ("mean", "std", "min", "max", "q01", "q99")
_FLOOR = 1e-8


@dataclass(frozen=True, slots=True, eq=False)
class TopicStatistics:
    """Of one topic; every array is (columns,) float64 in the topic's own units."""

    count: int
    mean: Floats
    std: Floats
    min: Floats
    max: Floats
    q01: Floats
    q99: Floats

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> TopicStatistics:
        """Of rows (n, columns); n >= 1."""
        rows = np.asarray(values, np.float64)
        if rows.ndim != 2 or not len(rows):
            raise UsageError(f"statistics of an array of shape {rows.shape}: expected (rows >= 1, columns)")
        low, high = np.quantile(rows, [0.01, 0.99], axis=0)
        return cls(len(rows), rows.mean(0), rows.std(0), rows.min(0), rows.max(0), low, high)


def parse_statistics(metadata: Mapping[str, str]) -> dict[str, TopicStatistics]:
    """What a manifest tells; empty where it tells nothing.

    Raises:
        ContractError: It tells something else.
    """
    text = metadata.get(METADATA_KEY)
    if not text:
        return {}
    try:
        return {
            topic: TopicStatistics(int(told["count"]), *(np.asarray(told[name], np.float64) for name in _COLUMNS))
            for topic, told in json.loads(text).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise ContractError(f"manifest metadata {METADATA_KEY}: {type(exc).__name__}: {exc}") from exc


def dump_statistics(statistics: Mapping[str, TopicStatistics]) -> str:
    """The JSON that `parse_statistics` reads."""
    plain = {
        topic: {"count": one.count, **{name: getattr(one, name).tolist() for name in _COLUMNS}}
        for topic, one in sorted(statistics.items())
    }
    return json.dumps(plain, sort_keys=True, separators=(",", ":"))


def merge(parts: Sequence[TopicStatistics], weights: Sequence[float] | None = None) -> TopicStatistics:
    """One set of statistics for a mixture.

    Mean and variance are exact (Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm
    for computing sample variances", 1979); min and max too. Quantiles cannot be merged exactly from
    quantiles: theirs are averaged by weight, which is what they are for, a robust range.

    Args:
        parts: One per source; equal columns.
        weights: Shares in the mixture; None: by count.

    Raises:
        UsageError: No parts, or columns that differ.
    """
    if not parts or len({part.mean.shape for part in parts}) != 1:
        raise UsageError(f"cannot merge statistics of columns {[part.mean.shape for part in parts]}")
    share = np.asarray([part.count for part in parts] if weights is None else weights, np.float64)
    share = (share / share.sum())[:, None]
    mean = np.stack([part.mean for part in parts])
    whole = (share * mean).sum(0)
    variance = (share * (np.stack([part.std for part in parts]) ** 2 + (mean - whole) ** 2)).sum(0)
    return TopicStatistics(
        sum(part.count for part in parts),
        whole,
        np.sqrt(variance),
        np.min([part.min for part in parts], axis=0),
        np.max([part.max for part in parts], axis=0),
        (share * np.stack([part.q01 for part in parts])).sum(0),
        (share * np.stack([part.q99 for part in parts])).sum(0),
    )


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
