"""`SparseWindows`: samples for policies (VLA): a few frames and a chunk of states and actions around an anchor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.loaders.loading import LoadedDataset
from kinemill.loaders.manifest import Manifest
from kinemill.loaders.options import Options
from kinemill.loaders.windows import WindowLike, from_delta_timestamps, parse_windows

__all__ = ["SparseWindows"]


@dataclass(frozen=True, slots=True)
class _Anchors:
    """Anchors per episode: every `stride`-th frame, without the first and last few."""

    drop_first: int
    drop_last: int
    stride: int
    anchor_hz: float | None

    def __call__(
        self, frames: npt.NDArray[Any], fps: npt.NDArray[Any], duration_ns: npt.NDArray[Any]
    ) -> npt.NDArray[np.int64]:
        steps = frames.astype(np.int64)
        if self.anchor_hz:
            blind = duration_ns // round(1e9 / self.anchor_hz) + 1
            steps = np.where(steps > 0, steps, blind)
        return np.maximum(0, -(-(steps - self.drop_first - self.drop_last) // self.stride))


class SparseWindows(LoadedDataset):
    """Windows around every frame of every episode, for policies.

    Example:
        >>> data = SparseWindows(
        ...     manifest,
        ...     {"/cam/front": steps(0), "/joint_states": steps(0), "/action": steps(range(50))},
        ... )
        >>> for batch in data.loader(batch_size=64, rank=rank, world=world, workers=8):
        ...     batch["/cam/front"], batch["/action"], batch["/action_is_pad"]
    """

    def __init__(
        self,
        manifest: Manifest | Sequence[Manifest],
        windows: Mapping[str, WindowLike] | None = None,
        *,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float | None = None,
        drop_first: int = 0,
        drop_last: int = 0,
        stride: int = 1,
        anchor_hz: float | None = None,
        **options: Unpack[Options],
    ) -> None:
        """Describe the samples; nothing of an episode is read. Its cost does not depend on the number of episodes.

        Args:
            manifest: One, or several for a mixture.
            windows: Key -> window: `steps(...)`, `seconds(...)`, a range or list of integers (steps) or a list of
                floats (seconds). Only topics named here are read.
            delta_timestamps: Instead, LeRobot's: key -> seconds.
            tolerance_s: For windows in seconds; default half the topic's period.
            drop_first: Frames at the start of an episode that are no anchors.
            drop_last: The same at its end.
            stride: Every how many frames is an anchor.
            anchor_hz: Anchors per second of episodes without cameras; None: they have no samples.
            options: What both data sets take: store, where, weights, resize, normalise, ...; see `Options`.

        Raises:
            ConfigError: A topic that no episode of the manifest has.
            UsageError: Settings that contradict each other.
        """
        if (windows is None) == (delta_timestamps is None):
            raise UsageError("give windows= or delta_timestamps=, one of the two")
        if drop_first < 0 or drop_last < 0 or stride < 1:
            raise UsageError("drop_first and drop_last are not negative; stride is 1 or more")
        parsed = (
            from_delta_timestamps(delta_timestamps, tolerance_s=tolerance_s)
            if delta_timestamps is not None
            else parse_windows(windows or {}, tolerance_s=tolerance_s)
        )
        self._first = drop_first
        self._stride = stride
        anchors = _Anchors(drop_first, drop_last, stride, anchor_hz)
        super().__init__(manifest, parsed, anchors, anchor_hz=anchor_hz, **options)

    def step_of(self, turn: int) -> int:
        """The anchor's frame number."""
        return self._first + turn * self._stride
