"""Samples and batches as torch tensors: contiguous, in memory used again; a worker makes them in shared memory."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from kinemill.loaders.engine import Found
from kinemill.loaders.fields import Field
from kinemill.loaders.memory import Blocks
from kinemill.loaders.planning import Slots

__all__ = ["BatchBuffer", "Samples", "collate"]

_SHARED_FROM = 1 << 16
"""Smaller tensors are cheaper to copy through a worker's queue than to map."""
BLOCK_FROM = 2 << 20
"""Smaller tensors than a huge page come from malloc, which has pages of that size at hand.

One block for all smaller tensors of a batch was tried: a first sample then took 13 ms or, in a third of the runs, 25 ms
(in a virtual machine; a huge page that was free for a while seems to be taken back by its host), and small pages in one
call gained nothing over malloc's.
"""


def _shared(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What torch's own collate does in a worker: the queue then passes a handle, not the bytes."""
    size = math.prod(shape) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    out: torch.Tensor = torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload]  # as above
    return out


def _allocate(wanted: dict[str, tuple[tuple[int, ...], torch.dtype]], blocks: Blocks | None) -> dict[str, torch.Tensor]:
    """Tensors by name, of any content."""
    sizes = {name: math.prod(shape) * dtype.itemsize for name, (shape, dtype) in wanted.items()}
    made: dict[str, torch.Tensor] = {}
    if get_worker_info() is not None:
        made = {name: _shared(*wanted[name]) for name, size in sizes.items() if size >= _SHARED_FROM}
    elif blocks is not None:
        large = {name: size for name, size in sizes.items() if size >= BLOCK_FROM}
        for name, array in zip(large, blocks.lease(list(large.values())), strict=True):
            shape, dtype = wanted[name]
            made[name] = torch.from_numpy(array).view(dtype).view(shape)
    return {
        name: made[name] if name in made else torch.empty(shape, dtype=dtype) for name, (shape, dtype) in wanted.items()
    }


class BatchBuffer:
    """The tensors of one batch, and the NumPy views that samples are written into."""

    def __init__(
        self, fields: tuple[Field, ...], size: int, *, times: bool = False, blocks: Blocks | None = None
    ) -> None:
        """Allocate.

        Args:
            fields: Of a sample.
            size: Samples.
            times: Also the true time of every message.
            blocks: Where large tensors come from; None: from torch.
        """
        self.fields = fields
        wanted: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}
        places: list[tuple[str, str, str]] = []
        for one in fields:
            span = (size, one.shape[0])
            kinds = {
                "data": (one.key, (size, *one.shape), torch.uint8 if one.video else torch.float32),
                "pad": (f"{one.key}_is_pad", span, torch.bool),
                "times": (f"{one.key}_t_ns", span, torch.int64),
            }
            for what, (name, shape, dtype) in kinds.items():
                if what != "times" or times:
                    wanted[name] = (shape, dtype)
                    places.append((what, one.key, name))
        self.tensors = _allocate(wanted, blocks)
        self._views = [(what, key, self.tensors[name].numpy()) for what, key, name in places]

    def slots(self, i: int) -> Slots:
        """Where sample `i` goes."""
        parts: dict[str, dict[str, Any]] = {"data": {}, "pad": {}, "times": {}}
        for what, key, view in self._views:
            parts[what][key] = view[i]
        return Slots(parts["data"], parts["pad"], parts["times"])


class Samples(Sequence[dict[str, Any]]):
    """The samples of a batch as dictionaries that share its memory, made when asked for.

    Attributes:
        batch: All of them; what `collate` returns.
    """

    __slots__ = ("_count", "batch")

    def __init__(self, batch: dict[str, Any], count: int) -> None:
        """Hold a batch of `count` samples."""
        self.batch = batch
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(self._count))]
        if not -self._count <= i < self._count:
            raise IndexError(i)
        return {key: value[i] for key, value in self.batch.items()}


def finish(buffer: BatchBuffer, found: Sequence[Found], numbers: Sequence[int], *, text: bool) -> Samples:
    """Add what is not an array of a topic.

    Args:
        buffer: Filled.
        found: Of the engine.
        numbers: Sample numbers.
        text: Also instruction and task.
    """
    batch: dict[str, Any] = dict(buffer.tensors)
    # by way of NumPy: torch walks a list several times as slowly
    batch["valid"] = torch.from_numpy(np.array([one.valid for one in found], np.bool_))
    batch["index"] = torch.from_numpy(np.array(numbers, np.int64))
    batch["anchor_ns"] = torch.from_numpy(np.array([one.anchor_ns for one in found], np.int64))
    batch["seconds"] = torch.from_numpy(
        np.array([(one.waited_s, one.decode_s) for one in found], np.float32).reshape(-1, 2)
    )
    batch["episode_id"] = [str(one.row.uuid) for one in found]
    batch["masked"] = [one.reason for one in found]
    if text:
        batch["instruction"] = [one.row.instruction for one in found]
        batch["task"] = [one.row.task for one in found]
    return Samples(batch, len(found))


def collate(samples: Any) -> Any:
    """For `DataLoader(collate_fn=collate)`: the batch that the samples already share, without a copy.

    Samples that come one by one (a sampler of single indices without `__getitems__`) are stacked as torch does.
    """
    batch = getattr(samples, "batch", None)
    return batch if batch is not None else default_collate(samples)
