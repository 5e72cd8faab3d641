"""`SparseWindows`: samples for policies (VLA): a few frames and a chunk of states and actions around an anchor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from kinemill.errors import UsageError
from kinemill.loaders.dataset import WindowedDataset
from kinemill.loaders.index import Where
from kinemill.loaders.manifest import Manifest
from kinemill.loaders.settings import ReadSettings
from kinemill.loaders.statistics import TopicStatistics
from kinemill.loaders.transforms import Transform
from kinemill.loaders.windows import WindowLike, from_delta_timestamps, parse_windows

if TYPE_CHECKING:
    from kinemill.contracts import Store

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


class SparseWindows(WindowedDataset):
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
        store: Store | str | None = None,
        topics: Mapping[str, str] | None = None,
        drop_first: int = 0,
        drop_last: int = 0,
        stride: int = 1,
        anchor_hz: float | None = None,
        where: Where | None = None,
        weights: Sequence[float] | None = None,
        epoch_samples: int | None = None,
        samples_per_fetch: int = 1,
        resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None = None,
        pixels: str = "rgb",
        normalise: str | Mapping[str, str] | None = None,
        statistics: Mapping[str, TopicStatistics] | None = None,
        transforms: Mapping[str, Transform] | None = None,
        assume: Mapping[str, tuple[int, ...]] | None = None,
        text: bool = True,
        times: bool = False,
        seed: int = 0,
        run_folder: str | Path | None = None,
        rank: int = 0,
        read: ReadSettings | None = None,
        decoder: str = "pyav",
    ) -> None:
        """Describe the samples; nothing of an episode is read. Its cost does not depend on the number of episodes.

        Args:
            manifest: One, or several for a mixture.
            windows: Key -> window: `steps(...)`, `seconds(...)`, a range or list of integers (steps) or a list of
                floats (seconds). Only topics named here are read.
            delta_timestamps: Instead, LeRobot's: key -> seconds.
            tolerance_s: For windows in seconds; default half the topic's period.
            store: Where the episodes lie, URL or object; default: where the manifest came from.
            topics: Key -> topic, where keys are to differ from topics.
            drop_first: Frames at the start of an episode that are no anchors.
            drop_last: The same at its end.
            stride: Every how many frames is an anchor.
            anchor_hz: Anchors per second of episodes without cameras; None: they have no samples.
            where: Filter on manifest columns, such as `{"split": "train", "robot": ["a", "b"]}`.
            weights: Share of each manifest in an epoch; default: everything once.
            epoch_samples: Samples per epoch over all ranks; default: as many as there are.
            samples_per_fetch: Samples of one episode, one after another, that come together and share their
                fetched bytes. 1 is a global shuffle; more saves requests and costs randomness within a batch.
            resize: (height, width) of all cameras, or by key.
            pixels: `rgb` (T, H, W, 3), `yuv420` (T, H * 3 / 2, W) for `yuv420_to_rgb` on the GPU, or `gray`.
            normalise: `mean_std`, `min_max` or `quantile` for all state topics, or by key.
            statistics: By topic; default: the manifests' own, merged.
            transforms: By key; see `kinemill.loaders.transforms`.
            assume: Shape of one moment of topics that the first episode does not have.
            text: Also `instruction` and `task`.
            times: Also `<key>_t_ns`, the true time of each message.
            seed: Of order and transforms.
            run_folder: Quarantine records go below it; None: to the log only.
            rank: Names the file of quarantine records.
            read: Bounds on reading.
            decoder: `pyav`, `torchcodec` or `nvdec`.

        Raises:
            ConfigError: A topic that the manifest does not have.
            UsageError: Settings that contradict each other.
        """
        if (windows is None) == (delta_timestamps is None):
            raise UsageError("give windows= or delta_timestamps=, one of the two")
        if drop_first < 0 or drop_last < 0 or stride < 1 or samples_per_fetch < 1:
            raise UsageError("drop_first and drop_last are not negative; stride and samples_per_fetch are 1 or more")
        parsed = (
            from_delta_timestamps(delta_timestamps, tolerance_s=tolerance_s)
            if delta_timestamps is not None
            else parse_windows(windows or {}, tolerance_s=tolerance_s)
        )
        self._first = drop_first
        self._stride = stride
        super().__init__(
            manifest,
            parsed,
            _Anchors(drop_first, drop_last, stride, anchor_hz),
            store=store,
            weights=weights,
            epoch_samples=epoch_samples,
            topics=topics,
            resize=resize,
            pixels=pixels,
            normalise=normalise,
            statistics=statistics,
            transforms=transforms,
            assume=assume,
            where=where,
            samples_per_fetch=samples_per_fetch,
            anchor_hz=anchor_hz,
            text=text,
            times=times,
            seed=seed,
            run_folder=run_folder,
            rank=rank,
            read=read,
            decoder=decoder,
        )

    def step_of(self, turn: int) -> int:
        """The anchor's frame number."""
        return self._first + turn * self._stride
