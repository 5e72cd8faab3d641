"""Curation: a spec that a person writes, compiled to SQL over the warehouse, built into a manifest.

>>> spec = load_spec(Path("reach.yaml"))
>>> plan = plan_manifest(spec, warehouse)
>>> built = build_manifest(spec, warehouse, store=store, catalog=catalog)
"""

from __future__ import annotations

from kinemill.pipelines.curation.build import BuiltManifest, ManifestPlan, build_manifest, plan_manifest
from kinemill.pipelines.curation.diff import ManifestDiff, diff_manifests
from kinemill.pipelines.curation.spec import CurationSpec, Filter, WeightRule, load_spec, parse_spec

__all__ = [
    "BuiltManifest",
    "CurationSpec",
    "Filter",
    "ManifestDiff",
    "ManifestPlan",
    "WeightRule",
    "build_manifest",
    "diff_manifests",
    "load_spec",
    "parse_spec",
    "plan_manifest",
]
