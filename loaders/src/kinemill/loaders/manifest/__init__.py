"""Manifests on the training side: fetched once per node, mapped by every rank, sliced without a copy.

Usage::

    ref = resolve(open_store("s3://corpus"), "7c1e...")
    manifest = open_manifest(ref, mode="node_mmap")     # one download per node, whoever comes first
    mine = manifest.shard(rank, world)                  # zero-copy
    row = mine[0]                                       # episode key, layout, instruction, ...
"""

from __future__ import annotations

from kinemill.loaders.manifest.fetch import collect, pull
from kinemill.loaders.manifest.manifest import Manifest, open_manifest, shard_bounds
from kinemill.loaders.manifest.ref import ManifestRef, resolve
from kinemill.loaders.manifest.row import ManifestRow

__all__ = ["Manifest", "ManifestRef", "ManifestRow", "collect", "open_manifest", "pull", "resolve", "shard_bounds"]
