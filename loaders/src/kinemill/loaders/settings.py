"""Settings of the training job's reading side: `/etc/kinemill/loaders.toml`."""

from __future__ import annotations

from dataclasses import dataclass, field

from kinemill.contracts import ManifestMode

__all__ = ["LoaderSettings", "ManifestSettings", "ReadSettings"]


@dataclass(frozen=True, slots=True)
class ManifestSettings:
    """How a manifest reaches the ranks."""

    mode: str = field(default="node_mmap", metadata={"env": "KINEMILL_MANIFEST_MODE"})
    """node_mmap | remote_parquet | in_memory; rows are identical in all three."""
    dir: str = ""
    """Local folder of the copies; empty is `<cache dir>/manifests`. Must lie on a local disk."""
    wait_s: float = 1800.0
    """How long to wait for another process of the node that fetches the same manifest."""
    part_mib: int = 8
    """Per ranged GET."""
    keep: int = 2
    """Local manifests that collection leaves, last used first."""

    def __post_init__(self) -> None:
        if self.mode not in ManifestMode:
            raise ValueError(f"manifest.mode '{self.mode}': one of {', '.join(ManifestMode)}")
        if self.part_mib < 1 or self.keep < 0 or self.wait_s < 0:
            raise ValueError("manifest.part_mib is 1 or more; keep and wait_s are not negative")


@dataclass(frozen=True, slots=True)
class ReadSettings:
    """How samples are read. Limits here are bounds on memory and patience, not tuning."""

    attempts: int = 4
    """Tries per request where the error is transient."""
    backoff_s: float = 0.2
    """Before the second try; doubles, with jitter."""
    deadline_s: float = 60.0
    """For one sample's bytes, all tries together."""
    prefetch: int = 4
    """Samples being fetched ahead per worker."""
    cache_mib: int = 64
    """Fetched ranges kept per worker for neighbouring samples."""
    max_masked_share: float = 0.01
    """Of the samples so far; above it the job stops."""
    min_samples: int = 1000
    """The ceiling is judged from here on, so that one bad first sample does not stop a job."""
    max_in_a_row: int = 64
    """Masked samples with no good one between; bounds the wait where a store is gone."""

    def __post_init__(self) -> None:
        if self.attempts < 1 or self.prefetch < 0 or self.cache_mib < 0:
            raise ValueError("read.attempts is 1 or more; prefetch and cache_mib are not negative")
        if not 0.0 <= self.max_masked_share <= 1.0:
            raise ValueError("read.max_masked_share lies between 0 and 1")


@dataclass(frozen=True, slots=True)
class LoaderSettings:
    """All of them."""

    manifest: ManifestSettings = field(default_factory=ManifestSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
