"""The same batches as an IterableDataset: whole batches per item, split over workers without gap or repeat."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import IterableDataset, get_worker_info

if TYPE_CHECKING:
    from kinemill.loaders.dataset import WindowedDataset

__all__ = ["Batches"]


class Batches(IterableDataset[dict[str, Any]]):
    """Use with `DataLoader(batches, batch_size=None)`: each item is a batch.

    Worker w of n makes the batches whose number is w modulo n, and the DataLoader takes them in turn, so the
    sequence is that of the map-style loader whatever n is. With StatefulDataLoader each worker's state goes into
    its checkpoint; `state_dict(steps)` of the sampler resumes with another number of workers.
    """

    def __init__(
        self,
        dataset: WindowedDataset,
        batch_size: int,
        *,
        rank: int = 0,
        world: int = 1,
        shuffle: bool = True,
        tail: str = "drop",
    ) -> None:
        """Arguments as for `Loader`."""
        super().__init__()
        self.dataset = dataset
        self.sampler = dataset.sampler(batch_size, rank=rank, world=world, shuffle=shuffle, tail=tail)
        self._made = 0

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch."""
        self.sampler.set_epoch(epoch)
        self._made = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """This worker's batches of the rest of the epoch."""
        info = get_worker_info()
        mine, of = (info.id, info.num_workers) if info else (0, 1)
        sampler, first = self.sampler, self._made
        step = sampler.world * sampler.batch_size
        steps = len(sampler)
        epoch, position = sampler.epoch, sampler.position
        for number in range(mine + first * of, steps, of):
            samples = sampler.batch(epoch, position + number * step)
            after = number + of
            ahead = sampler.batch(epoch, position + after * step) if after < steps else []
            batch = self.dataset.read(samples, ahead=ahead, epoch=epoch).batch
            self._made += 1
            yield batch
        self._made = 0

    def state_dict(self) -> dict[str, Any]:
        """Of this worker: how many batches it has made since the sampler's state."""
        return {"sampler": self.sampler.state_dict(), "made": self._made}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on; the number of workers must be the same (else resume the sampler's state)."""
        self.sampler.load_state_dict(state["sampler"])
        self._made = int(state["made"])
