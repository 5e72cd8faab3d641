"""Samples and batches as torch tensors: allocated once, contiguous, in shared memory where a worker makes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import default_collate, get_worker_info

from kinemill.loaders.engine import Found
from kinemill.loaders.fields import Field
from kinemill.loaders.planning import Slots

__all__ = ["BatchBuffer", "Samples", "collate"]

_SHARED_FROM = 1 << 16
"""Smaller tensors are cheaper to copy through the queue than to map."""


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that a worker can hand over without a copy."""
    count = int(np.prod(shape))
    size = count * dtype.itemsize
    if get_worker_info() is None or size < _SHARED_FROM:
        return torch.empty(shape, dtype=dtype)
    # what torch's own collate does in a worker: the queue then passes a handle
    storage = torch.UntypedStorage._new_shared(size)  # type: ignore[no-untyped-call]  # torch leaves it untyped
    out: torch.Tensor = torch.empty(0, dtype=dtype).set_(storage, 0, shape)  # type: ignore[call-overload]  # as above
    return out


class BatchBuffer:
    """The tensors of one batch, and the NumPy views that samples are written into."""

    def __init__(self, fields: tuple[Field, ...], size: int, *, times: bool) -> None:
        """Allocate.

        Args:
            fields: Of a sample.
            size: Samples.
            times: Also the true time of every message.
        """
        self.fields = fields
        self.tensors: dict[str, torch.Tensor] = {}
        self._views: list[tuple[str, str, Any]] = []
        for one in fields:
            self._add("data", one.key, (size, *one.shape), torch.uint8 if one.video else torch.float32)
            self._add("pad", one.key, (size, one.shape[0]), torch.bool)
            if times:
                self._add("times", one.key, (size, one.shape[0]), torch.int64)

    def _add(self, what: str, key: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        name = {"data": key, "pad": f"{key}_is_pad", "times": f"{key}_t_ns"}[what]
        tensor = self.tensors[name] = _empty(shape, dtype)
        self._views.append((what, key, tensor.numpy()))

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
    batch["valid"] = torch.tensor([one.valid for one in found], dtype=torch.bool)
    batch["index"] = torch.tensor(list(numbers), dtype=torch.int64)
    batch["anchor_ns"] = torch.tensor([one.anchor_ns for one in found], dtype=torch.int64)
    batch["seconds"] = torch.tensor([(one.waited_s, one.decode_s) for one in found])
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
