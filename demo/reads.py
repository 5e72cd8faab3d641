"""Reads random samples as a training job does, and has the object store count the requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from demo.counters import served

if TYPE_CHECKING:
    from kinemill.contracts import Store

__all__ = ["Reads", "measure"]


@dataclass(frozen=True, slots=True)
class Reads:
    """What random samples cost."""

    samples: int
    requests: int
    sent_bytes: int
    masked: int

    @property
    def per_sample(self) -> float:
        """Requests for one sample."""
        return self.requests / self.samples

    @property
    def bytes_per_sample(self) -> float:
        """Bytes that the store sent for one sample."""
        return self.sent_bytes / self.samples


def measure(store: Store, manifest: str, metrics_url: str, bucket: str, *, cache_mib: int, samples: int = 256) -> Reads:
    """Read `samples` random training samples, in one process, through a global shuffle.

    Args:
        store: Holds manifest and episodes.
        manifest: Its id.
        metrics_url: The server's counters.
        bucket: Whose.
        cache_mib: Of fetched ranges that the loader keeps; 0 shows what a sample of a large corpus costs.
        samples: To read.
    """
    from kinemill.loaders import ReadSettings, SparseWindows, open_manifest, resolve, seconds, steps

    data = SparseWindows(
        open_manifest(resolve(store, manifest), mode="node_mmap", store=store),
        {
            "/cam/scene": steps(0),
            "/cam/wrist": steps(0),
            "/joint_states": steps(0),
            "/action": seconds([i * 0.05 for i in range(8)]),
        },
        where={"split": "train"},
        seed=7,
        read=ReadSettings(cache_mib=cache_mib),
    )
    loader = data.loader(32, tail="wrap")
    before = served(metrics_url, bucket)
    for _ in zip(range(samples // 32), loader, strict=False):
        pass
    found = served(metrics_url, bucket).since(before)
    return Reads(loader.samples, found.gets, found.sent_bytes, loader.masked.total())
