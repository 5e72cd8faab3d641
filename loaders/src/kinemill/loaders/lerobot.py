"""Items as a LeRobot data set gives them, so that a training script changes one line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.utils.data

from kinemill.errors import UsageError
from kinemill.loaders.manifest import Manifest
from kinemill.loaders.sparse import SparseWindows
from kinemill.loaders.windows import Window, from_delta_timestamps, seconds

__all__ = ["LeRobotItems"]


class LeRobotItems(torch.utils.data.Dataset[dict[str, Any]]):
    """`SparseWindows` with LeRobot's keys, shapes and masks.

    A key without `delta_timestamps` is the current moment, without a time axis and without a mask; one with it has
    a time axis and `<key>_is_pad`. Cameras are (C, H, W), float32 in [0, 1] or uint8. Besides: `timestamp`,
    `frame_index`, `episode_index`, `index`, `task_index`, `task`.

    Batches of many samples are faster from `SparseWindows` itself, which leaves frames (H, W, C) and uint8.
    """

    def __init__(
        self,
        manifest: Manifest,
        topics: Mapping[str, str],
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float | None = None,
        return_uint8: bool = False,
        **options: Any,
    ) -> None:
        """Describe the items.

        Args:
            manifest: The rows; `episode_index` counts them.
            topics: LeRobot's key -> topic, such as `{"observation.images.front": "/cam/front"}`.
            delta_timestamps: As LeRobot takes them.
            tolerance_s: As LeRobot takes it, but what lies outside is padding, not an error.
            return_uint8: Leave cameras as uint8.
            **options: Of `SparseWindows`.

        Raises:
            UsageError: A delta for a key that is no topic.
        """
        deltas = dict(delta_timestamps or {})
        for key in deltas:
            if key not in topics:
                raise UsageError(f"delta_timestamps: '{key}' is not among topics {', '.join(topics)}")
        windows: dict[str, Window] = {
            key: seconds(0.0, tolerance_s=tolerance_s) for key in topics if key not in deltas
        } | from_delta_timestamps(deltas, tolerance_s=tolerance_s)
        self._deltas = set(deltas)
        self._uint8 = return_uint8
        self.windows = SparseWindows(manifest, windows, topics=topics, **options)
        self._tasks: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """A batch's items; DataLoader calls it."""
        return [self._shape(item) for item in self.windows.__getitems__(indices)]

    def _shape(self, sample: dict[str, Any]) -> dict[str, Any]:
        job = self.windows.locate(int(sample["index"]))
        item: dict[str, Any] = {}
        for one in self.windows.fields:
            value = sample[one.key]
            if one.video and one.pixels == "rgb":
                value = value.permute(0, 3, 1, 2)
                value = value if self._uint8 else value.float() / 255.0
            if one.key in self._deltas:
                item[one.key] = value.contiguous()
                item[f"{one.key}_is_pad"] = sample[f"{one.key}_is_pad"]
            else:
                item[one.key] = value[0].contiguous()
        row = self.windows.row(job.source, job.row)
        fps = row.fps or 1.0
        item["timestamp"] = torch.tensor(job.step / fps, dtype=torch.float32)
        item["frame_index"] = torch.tensor(job.step)
        item["episode_index"] = torch.tensor(job.row)
        item["index"] = sample["index"]
        task = row.instruction or row.task
        item["task_index"] = torch.tensor(self._tasks.setdefault(task, len(self._tasks)))
        item["task"] = task
        return item
