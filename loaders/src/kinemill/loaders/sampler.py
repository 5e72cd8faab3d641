"""Batches of one rank in the global order, resumable in the middle of an epoch by one number.

Global step g takes positions [g*W*B, (g+1)*W*B) of the epoch's order; rank r takes its own B of
them. All ranks do the same number of steps. What was consumed is a prefix of the order, so the
state is its length, and any world size, batch size and worker count goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kinemill.errors import ConfigError, UsageError
from kinemill.loaders.order import Order

__all__ = ["BatchSampler", "Indices"]

STATE_VERSION = 1


class Indices(list[int]):
    """A batch's samples, and the ones that the same worker reads next (to fetch ahead)."""

    __slots__ = ("ahead", "epoch")

    def __init__(self, samples: list[int], ahead: tuple[int, ...] = (), epoch: int = 0) -> None:
        """Hold them, and the epoch, which random transforms depend on."""
        super().__init__(samples)
        self.ahead = ahead
        self.epoch = epoch

    def __reduce__(self) -> tuple[Any, ...]:
        return Indices, (list(self), self.ahead, self.epoch)


class BatchSampler:
    """Use as `batch_sampler=` of a DataLoader or a StatefulDataLoader.

    A plain DataLoader asks for batches ahead of what it delivers, so take the state by what the
    loop consumed: `state_dict(steps)`, or use `kinemill.loaders.Loader`, which counts.
    """

    def __init__(
        self,
        order: Order,
        *,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        epoch: int = 0,
        tail: str = "drop",
        ahead: int = 0,
        identity: str = "",
    ) -> None:
        """Make the sampler of one rank.

        Args:
            order: The epoch's sequence.
            batch_size: Samples per rank and step.
            rank: Of this process in the data-parallel world.
            world: Its size.
            epoch: To start with.
            tail: What an epoch's remainder does that does not fill a step on every rank: `drop` it, or
                `wrap` it up with samples from the epoch's start.
            ahead: Batches between one and the next of the same worker (the worker count); 0: no look-ahead.
            identity: Of the data; a state of other data is refused.

        Raises:
            UsageError: Numbers that do not fit together.
        """
        if batch_size < 1 or world < 1 or not 0 <= rank < world:
            raise UsageError(f"batch_size {batch_size}, rank {rank}, world {world}: no such sampler")
        if tail not in ("drop", "wrap"):
            raise UsageError(f"tail {tail!r}: drop or wrap")
        self.order = order
        self.batch_size = batch_size
        self.rank = rank
        self.world = world
        self.epoch = epoch
        self.tail = tail
        self.ahead = ahead
        self.identity = identity
        self.position = 0
        """Positions of this epoch behind us, over all ranks."""

    # ---- arithmetic

    @property
    def _step_samples(self) -> int:
        return self.world * self.batch_size

    def _steps_from(self, position: int) -> int:
        left = max(0, self.order.length - position)
        return left // self._step_samples if self.tail == "drop" else -(-left // self._step_samples)

    def __len__(self) -> int:
        """Steps left in this epoch, the same on every rank."""
        return self._steps_from(self.position)

    def batch(self, epoch: int, position: int) -> list[int]:
        """This rank's samples of the global step that begins at `position`."""
        mine = position + self.rank * self.batch_size + np.arange(self.batch_size, dtype=np.int64)
        return [int(s) for s in self.order.samples(epoch, mine % max(1, self.order.length))]

    # ---- iteration

    def __iter__(self) -> _Batches:
        """The rest of this epoch; the next one where a resumed run had finished this one."""
        if self.position and not len(self):
            self.set_epoch(self.epoch + 1)
        return _Batches(self)

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch; the same epoch again keeps the position."""
        if epoch != self.epoch:
            self.epoch, self.position = epoch, 0

    # ---- state

    def state_dict(self, steps: int | None = None) -> dict[str, Any]:
        """What goes into a checkpoint.

        Args:
            steps: Steps of this epoch that the loop has consumed since the last `load_state_dict` or
                `set_epoch`; None: the position this sampler stands at.
        """
        position = self.position if steps is None else self.position + steps * self._step_samples
        return {
            "version": STATE_VERSION,
            "seed": self.order.seed,
            "epoch": self.epoch,
            "position": min(position, self.order.length),
            "length": self.order.length,
            "unit": self.order.unit,
            "identity": self.identity,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a run stopped; world size, batch size and workers may differ from that run's.

        Raises:
            ConfigError: The state is of other data or another order; the difference is named.
        """
        mine = self.state_dict()
        for name in ("version", "seed", "length", "unit", "identity"):
            if state.get(name) != mine[name]:
                raise ConfigError(
                    f"data state does not fit: {name} is {state.get(name)!r} in the checkpoint "
                    f"and {mine[name]!r} here; "
                    "resume with the same manifest, seed and windows, or start a new epoch"
                )
        self.epoch = int(state["epoch"])
        self.position = int(state["position"])


class _Batches(Iterator[Indices]):
    """One pass of a sampler; its own state, so that a loader that runs ahead can keep the one of each batch."""

    def __init__(self, sampler: BatchSampler) -> None:
        self._sampler = sampler
        self._epoch = sampler.epoch
        self._position = sampler.position

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Indices:
        sampler = self._sampler
        step = sampler._step_samples
        left = sampler.order.length - self._position
        if left < (step if sampler.tail == "drop" else 1):
            raise StopIteration
        samples = sampler.batch(self._epoch, self._position)
        ahead: tuple[int, ...] = ()
        after = self._position + sampler.ahead * step
        if sampler.ahead and after + step <= sampler.order.length:
            ahead = tuple(sampler.batch(self._epoch, after))
        self._position += step
        return Indices(samples, ahead, self._epoch)

    def state_dict(self) -> dict[str, Any]:
        """For StatefulDataLoader, which keeps it with each batch."""
        state = self._sampler.state_dict()
        return {**state, "epoch": self._epoch, "position": min(self._position, self._sampler.order.length)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a kept state."""
        self._sampler.load_state_dict(state)
        self._epoch = self._sampler.epoch
        self._position = self._sampler.position
