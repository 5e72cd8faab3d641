"""Statistics of state topics taken from a data set, where the manifest brings none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.manifest.statistics import TopicStatistics

if TYPE_CHECKING:
    from kinemill.loaders.dataset import WindowedDataset

__all__ = ["TopicStatistics", "compute_statistics"]


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
