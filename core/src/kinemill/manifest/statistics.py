"""Statistics of state topics in a manifest's metadata: written by the builder, merged and applied by loaders."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kinemill.errors import ContractError, UsageError

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

__all__ = ["METADATA_KEY", "Gathered", "TopicStatistics", "dump_statistics", "merge", "parse_statistics"]

METADATA_KEY = "kinemill.manifest.statistics"
"""Schema metadata of a manifest: JSON, topic -> {count, mean, std, min, max, q01, q99}, a number per column."""

_COLUMNS = ("mean", "std", "min", "max", "q01", "q99")


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
        topic: {"count": one.count, **{name: _plain(getattr(one, name)) for name in _COLUMNS}}
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


def _plain(values: Floats) -> list[float]:
    """Nine digits: what the last ones are depends on the processor's way of adding, and a manifest's bytes must not."""
    return [float(f"{value:.9g}") for value in values.tolist()]


@dataclass(slots=True, eq=False)
class Gathered:
    """Rows of one topic added up part by part; only a sample of them is kept, for the quantiles.

    Attributes:
        keep: Rows of a part that are kept at most, evenly spread.
    """

    keep: int = 2000
    _whole: TopicStatistics | None = None
    _kept: list[npt.NDArray[np.float32]] = field(default_factory=list)

    @property
    def columns(self) -> int | None:
        """Of the rows so far; None before the first."""
        return None if self._whole is None else len(self._whole.mean)

    def add(self, rows: npt.NDArray[Any]) -> None:
        """Rows (n, columns); none is fine.

        Raises:
            UsageError: Another number of columns than before.
        """
        if not len(rows):
            return
        part = TopicStatistics.of(rows)
        self._whole = part if self._whole is None else merge([self._whole, part])
        picked = np.unique(np.linspace(0, len(rows) - 1, min(self.keep, len(rows))).astype(np.int64))
        self._kept.append(np.asarray(rows[picked], np.float32))

    def result(self) -> TopicStatistics | None:
        """Of all rows; quantiles of those that were kept. None without rows."""
        if self._whole is None:
            return None
        low, high = np.quantile(np.concatenate(self._kept).astype(np.float64), [0.01, 0.99], axis=0)
        one = self._whole
        return TopicStatistics(one.count, one.mean, one.std, one.min, one.max, low, high)
