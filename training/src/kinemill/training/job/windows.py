"""The job's data: `SparseWindows` over a manifest, one frame of every camera, the state, and a chunk of actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch

from kinemill.errors import ConfigError
from kinemill.loaders import ReadSettings, SparseWindows, open_manifest, resolve, seconds, steps
from kinemill.training.job.source import Batch, Statistics

if TYPE_CHECKING:
    from kinemill.loaders import Manifest
    from kinemill.training.job.config import JobConfig

__all__ = ["WindowSource", "open_windows"]

STATISTICS_SAMPLES = 1024
"""Where the manifest brings no statistics: samples of the training episodes that they are taken from (state only)."""


def open_windows(config: JobConfig, rank: int, world: int) -> WindowSource:
    """This rank's data.

    Raises:
        ConfigError: No such manifest, split or topic, or too few samples for one step.
    """
    from kinemill.store import open_store

    store = open_store(config.data.store)
    manifest = open_manifest(resolve(store, config.data.manifest), mode=config.data.mode, store=store)
    return WindowSource(config, manifest, rank, world)


class WindowSource:
    """`Source` over a manifest; see there."""

    def __init__(self, config: JobConfig, manifest: Manifest, rank: int, world: int) -> None:
        data = config.data
        self._config, self._manifest, self._rank, self._world = config, manifest, rank, world
        self.cameras = len(data.cameras)
        self._train = self._open(data.train_split, (*data.cameras, data.state, data.action))
        self._loader = self._train.loader(
            config.train.batch, rank=rank, world=world, workers=data.workers, tail="wrap", name="train"
        )
        if len(self._train) == 0:
            raise ConfigError(
                f"manifest {data.manifest}: no episode of split '{data.train_split}' has a frame; look at its spec"
            )
        self._held_out: SparseWindows | None = None

    def _open(self, split: str, topics: tuple[str, ...]) -> SparseWindows:
        data = self._config.data
        moments = [i * data.step_s for i in range(data.chunk_steps)]
        windows = {topic: seconds(moments) if topic == data.action else steps(0) for topic in topics}
        return SparseWindows(
            self._manifest,
            windows,
            where={"split": split},
            resize=(data.height, data.width),
            text=False,
            seed=self._config.train.seed,
            run_folder=self._config.run,
            rank=self._rank,
            read=ReadSettings(max_masked_share=data.max_masked_share),
        )

    def statistics(self) -> Statistics:
        """The manifest's, else of evenly spread training samples (state and action only, the same on every rank)."""
        data = self._config.data
        told = self._train.statistics
        if data.state in told and data.action in told:
            state, action = told[data.state], told[data.action]
            return Statistics(
                *(torch.tensor(v, dtype=torch.float32) for v in (state.mean, _spread(state.std))),
                *(torch.tensor(v, dtype=torch.float32) for v in (action.mean, _spread(action.std))),
            )
        plain = self._open(data.train_split, (data.state, data.action))
        batch = plain.read(_spread_over(len(plain), STATISTICS_SAMPLES)).batch
        valid = ~batch[f"{data.action}_is_pad"] & batch["valid"][:, None]
        return Statistics.of(batch[data.state][batch["valid"], 0], batch[data.action][valid])

    def batches(self) -> Iterator[Batch]:
        """Without end, epoch after epoch, from the position on."""
        while True:
            for batch in self._loader:
                yield self._batch(batch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's own: a position in the epoch's order, the same on every rank."""
        return self._loader.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there; another world size is fine, other data are refused."""
        self._loader.load_state_dict(state)

    def held_out(self, samples: int) -> Iterator[Batch]:
        """This rank's share of evenly spread held-out samples."""
        data = self._config.data
        if self._held_out is None:
            self._held_out = self._open(data.held_out_split, (*data.cameras, data.state, data.action))
        numbers = _spread_over(len(self._held_out), samples)[self._rank :: self._world]
        size = self._config.train.batch
        for start in range(0, len(numbers), size):
            yield self._batch(self._held_out.read(numbers[start : start + size]).batch)

    def counters(self) -> dict[str, float]:
        """Samples read, and of them masked."""
        return {"samples": float(self._loader.samples), "masked": float(self._loader.masked.total())}

    def close(self) -> None:
        """Nothing is held open between batches."""

    def _batch(self, batch: Mapping[str, Any]) -> Batch:
        data = self._config.data
        return Batch(
            frames=torch.cat([batch[camera] for camera in data.cameras], dim=1),
            state=batch[data.state][:, 0],
            action=batch[data.action],
            valid=~batch[f"{data.action}_is_pad"] & batch["valid"][:, None],
        )


def _spread(std: Any) -> Any:
    """A column that never moves gets spread 1, so that nothing is divided by zero."""
    return [value if value > 1e-6 else 1.0 for value in std]


def _spread_over(length: int, samples: int) -> list[int]:
    """At most `samples` numbers of 0..length-1, evenly spread."""
    count = min(length, samples)
    return [i * length // count for i in range(count)]
