"""Vendor formats behind one Protocol: find recordings, say what is in them, read one episode.

A new format is one module here with an `ADAPTER`, one test and one vendor YAML; nothing else changes.
`find` looks at names and first bytes only. `inspect` and `read` parse bytes that somebody else wrote, so
outside of tests they run in the child of `kinemill.pipelines.ingest.sandbox`.
"""

from __future__ import annotations

from kinemill.pipelines.adapters.base import (
    Adapter,
    CameraTrack,
    EpisodeFacts,
    Finding,
    Level,
    Picture,
    RawEpisode,
    Source,
    SourceFacts,
    StateTrack,
    TopicFacts,
)
from kinemill.pipelines.adapters.registry import adapter, adapters, find_sources
from kinemill.pipelines.adapters.vendor import VendorSpec, builtin_vendors, load_vendor

__all__ = [
    "Adapter",
    "CameraTrack",
    "EpisodeFacts",
    "Finding",
    "Level",
    "Picture",
    "RawEpisode",
    "Source",
    "SourceFacts",
    "StateTrack",
    "TopicFacts",
    "VendorSpec",
    "adapter",
    "adapters",
    "builtin_vendors",
    "find_sources",
    "load_vendor",
]
