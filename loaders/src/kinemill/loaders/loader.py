"""`Loader`: a torch DataLoader in global order, with exact state and bounded patience with its workers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from kinemill.errors import UsageError
from kinemill.loaders.batch import collate
from kinemill.loaders.faults import TooManyMaskedError
from kinemill.loaders.metrics import count_batch, count_seconds

if TYPE_CHECKING:
    from kinemill.loaders.dataset import WindowedDataset

__all__ = ["Loader"]

log = logging.getLogger(__name__)


def _one_thread(_: int) -> None:
    """A worker decodes in one thread; torch's own would fight over the cores."""
    import torch

    torch.set_num_threads(1)


class Loader:
    """Batches of one rank. Iterate it once per epoch; the next iteration is the next epoch.

    The state counts what the loop has taken, not what workers have read ahead, so a run that is killed and
    resumed, with any world size, batch size and number of workers, sees every sample of the epoch exactly once.
    """

    def __init__(
        self,
        dataset: WindowedDataset,
        batch_size: int,
        *,
        rank: int = 0,
        world: int = 1,
        workers: int = 0,
        shuffle: bool = True,
        tail: str = "drop",
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        multiprocessing_context: str | None = None,
        worker_restarts: int = 3,
        name: str = "train",
    ) -> None:
        """Make it; no worker starts before the first batch is asked for.

        Args:
            dataset: `SparseWindows` or `Clips`.
            batch_size: Per rank.
            rank: In the data-parallel world.
            world: Its size. All ranks do the same number of steps.
            workers: Processes that read; 0: in this one.
            shuffle: Global shuffle, by the data set's seed and the epoch.
            tail: `drop` or `wrap` the samples that do not fill a step on every rank.
            prefetch_factor: Batches that each worker is ahead.
            pin_memory: Copy batches into pinned memory, for transfers that overlap.
            multiprocessing_context: `fork`, `spawn` or `forkserver`; default: Python's.
            worker_restarts: How often killed workers are replaced, from the batch that was due, before giving up.
            name: Of the metrics' label.
        """
        if workers < 0 or prefetch_factor < 1 or worker_restarts < 0:
            raise UsageError("workers and worker_restarts are not negative, prefetch_factor is 1 or more")
        self.dataset = dataset
        self.sampler = dataset.sampler(batch_size, rank=rank, world=world, shuffle=shuffle, tail=tail, workers=workers)
        self.name = name
        self.masked: Counter[str] = Counter()
        """Samples of this rank that were masked, by reason, since the loader was made."""
        self.samples = 0
        self._taken = 0
        self._restarts = worker_restarts
        self._options: dict[str, Any] = {"num_workers": workers, "pin_memory": pin_memory, "collate_fn": collate}
        if workers:
            self._options["prefetch_factor"] = prefetch_factor
            self._options["worker_init_fn"] = _one_thread
            self._options["multiprocessing_context"] = multiprocessing_context

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""
        return self.sampler.epoch

    def __len__(self) -> int:
        """Steps of the current epoch that are left, or of a whole one at its start."""
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the current one again keeps its position."""
        self.sampler.set_epoch(epoch)
        self._taken = 0

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """The rest of the current epoch."""
        if self._taken:  # a loop that was left in the middle goes on from there
            self.sampler.load_state_dict(self.state_dict())
        self._taken = 0
        left = self._restarts
        while True:
            batches = iter(self._data_loader())
            try:
                for batch in batches:
                    self._taken += 1
                    self._judge(batch)
                    yield batch
                break
            except RuntimeError as exc:
                # torch reports a worker that was killed by a signal in words only
                if "DataLoader worker" not in str(exc) or left <= 0:
                    raise
                left -= 1
                log.warning(
                    "a worker died (%s); reading goes on from the batch that was due, %d restarts left", exc, left
                )
                self.sampler.load_state_dict(self.state_dict())
                self._taken = 0
            finally:
                del batches
        self.sampler.set_epoch(self.sampler.epoch + 1)
        self._taken = 0

    def _data_loader(self) -> DataLoader[Any]:
        return DataLoader(self.dataset, batch_sampler=self.sampler, **self._options)

    def _judge(self, batch: dict[str, Any]) -> None:
        """Count, over all workers of the rank, and stop above the ceiling."""
        reasons = [reason for reason in batch["masked"] if reason]
        self.samples += len(batch["masked"])
        self.masked.update(reasons)
        count_batch(self.name, len(batch["masked"]) - len(reasons), reasons)
        waited, decode = batch["seconds"].sum(0).tolist()
        count_seconds({"fetch": waited, "decode": decode})
        settings = self.dataset.read_settings
        total = self.masked.total()
        if self.samples >= settings.min_samples and total > settings.max_masked_share * self.samples:
            told = ", ".join(f"{reason} {count}" for reason, count in self.masked.most_common(4))
            raise TooManyMaskedError(
                f"{total} of {self.samples} samples masked, ceiling {settings.max_masked_share:.1%}; reasons: {told}; "
                "see `kinemill load show --quarantine`"
            )

    # ---- state

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the same on every rank."""
        return self.sampler.state_dict(self._taken)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint, also of another world size, batch size or number of workers.

        Raises:
            ConfigError: The state is of other data, windows or seed.
        """
        self.sampler.load_state_dict(state)
        self._taken = 0
