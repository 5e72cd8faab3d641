"""From a manifest to batches, inside the training job: fetched once per node, mapped, sliced, decoded.

Usage::

    from kinemill.loaders import SparseWindows, open_manifest, resolve, steps
    from kinemill.store import open_store

    manifest = open_manifest(resolve(open_store("s3://corpus"), "7c1e..."))
    data = SparseWindows(manifest, {"/cam/front": steps(0), "/state": steps(0), "/action": steps(range(50))})
    loader = data.loader(batch_size=64, rank=rank, world=world, workers=8)
    for batch in loader:
        ...                                   # batch["/cam/front"]: uint8 (64, 1, H, W, 3), contiguous
        checkpoint["data"] = loader.state_dict()

Nothing heavy is imported before a name is used; manifests need no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinemill.loaders.batch import collate
    from kinemill.loaders.clips import Clips
    from kinemill.loaders.faults import TooManyMaskedError
    from kinemill.loaders.iterable import Batches
    from kinemill.loaders.lerobot import LeRobotItems
    from kinemill.loaders.loader import Loader
    from kinemill.loaders.manifest import Manifest, ManifestRef, open_manifest, resolve
    from kinemill.loaders.normaliser import Normaliser
    from kinemill.loaders.sampler import BatchSampler
    from kinemill.loaders.settings import LoaderSettings, ReadSettings
    from kinemill.loaders.sparse import SparseWindows
    from kinemill.loaders.statistics import TopicStatistics, compute_statistics
    from kinemill.loaders.windows import Window, seconds, steps
    from kinemill.loaders.yuv import yuv420_to_rgb

_WHERE = {
    "BatchSampler": "sampler",
    "Batches": "iterable",
    "Clips": "clips",
    "LeRobotItems": "lerobot",
    "Loader": "loader",
    "LoaderSettings": "settings",
    "Manifest": "manifest",
    "ManifestRef": "manifest",
    "Normaliser": "normaliser",
    "ReadSettings": "settings",
    "SparseWindows": "sparse",
    "TooManyMaskedError": "faults",
    "TopicStatistics": "statistics",
    "Window": "windows",
    "collate": "batch",
    "compute_statistics": "statistics",
    "open_manifest": "manifest",
    "resolve": "manifest",
    "seconds": "windows",
    "steps": "windows",
    "yuv420_to_rgb": "yuv",
}

__all__ = [
    "BatchSampler",
    "Batches",
    "Clips",
    "LeRobotItems",
    "Loader",
    "LoaderSettings",
    "Manifest",
    "ManifestRef",
    "Normaliser",
    "ReadSettings",
    "SparseWindows",
    "TooManyMaskedError",
    "TopicStatistics",
    "Window",
    "collate",
    "compute_statistics",
    "open_manifest",
    "resolve",
    "seconds",
    "steps",
    "yuv420_to_rgb",
]


def __getattr__(name: str) -> Any:
    """Import on first use (PEP 562)."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"kinemill.loaders.{_WHERE[name]}"), name)
    globals()[name] = value
    return value
