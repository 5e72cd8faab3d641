"""The ways that `SparseWindows` and `Clips` are iterated: a loader with exact state, or whole batches as a stream."""

from __future__ import annotations

from typing import Any

from kinemill.loaders.dataset import WindowedDataset
from kinemill.loaders.iterable import Batches
from kinemill.loaders.loader import Loader

__all__ = ["LoadedDataset"]


class LoadedDataset(WindowedDataset):
    """A `WindowedDataset` that makes its own loaders."""

    def loader(self, batch_size: int, **options: Any) -> Loader:
        """A DataLoader with exact state; see `kinemill.loaders.loader.Loader` for the options."""
        return Loader(self, batch_size, **options)

    def iterable(self, batch_size: int, **options: Any) -> Batches:
        """The same batches as an IterableDataset; see `kinemill.loaders.iterable.Batches`."""
        return Batches(self, batch_size, **options)
