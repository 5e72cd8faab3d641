"""The arguments that `SparseWindows` and `Clips` have in common."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from kinemill.contracts import Store
    from kinemill.loaders.index import Where
    from kinemill.loaders.settings import ReadSettings
    from kinemill.loaders.transforms import Transform
    from kinemill.manifest.statistics import TopicStatistics

__all__ = ["Options"]


class Options(TypedDict, total=False):
    """Keyword arguments of both data sets. All may be left out."""

    store: Store | str | None
    """Where the episodes lie, URL or object; default: where the manifest came from."""
    topics: Mapping[str, str] | None
    """Key -> topic, where keys are to differ from topics."""
    where: Where | None
    """Filter on manifest columns, such as `{"split": "train", "robot": ["a", "b"]}`."""
    weights: Sequence[float] | None
    """Share of each manifest in an epoch; default: everything once."""
    epoch_samples: int | None
    """Samples per epoch over all ranks; default: as many as there are."""
    samples_per_fetch: int
    """Samples of one episode, one after another, that come together and share their fetched bytes. 1 is a global
    shuffle; more saves requests and costs randomness within a batch."""
    resize: tuple[int, int] | Mapping[str, tuple[int, int]] | None
    """(height, width) of all cameras, or by key."""
    pixels: str
    """`rgb` (T, H, W, 3), `yuv420` (T, H * 3 / 2, W) for `yuv420_to_rgb` on the GPU, or `gray`."""
    normalise: str | Mapping[str, str] | None
    """`mean_std`, `min_max` or `quantile` for all state topics, or by key."""
    statistics: Mapping[str, TopicStatistics] | None
    """By topic; default: the manifests' own, merged."""
    transforms: Mapping[str, Transform] | None
    """By key; see `kinemill.loaders.transforms`."""
    assume: Mapping[str, tuple[int, ...]] | None
    """Shape of one moment of topics that no episode has yet."""
    text: bool
    """Also `instruction` and `task`; on by default."""
    times: bool
    """Also `<key>_t_ns`, the true time of each message."""
    seed: int
    """Of order and transforms."""
    run_folder: str | Path | None
    """Quarantine records go below it: a folder, or a URL such as `s3://runs/vla-7`; None: to the log only."""
    rank: int
    """Names the quarantine records."""
    read: ReadSettings | None
    """Bounds on reading."""
    decoder: str
    """`pyav`, `torchcodec` or `nvdec`."""
