"""The system of record: deliveries, episodes, quality, labels, steps and manifests, under constraints.

Importing this package loads nothing heavy; `Catalog` and its records load SQLAlchemy on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinemill.pipelines.catalog.api import Catalog
    from kinemill.pipelines.catalog.records import (
        EpisodeCard,
        EpisodeRow,
        LabelRecord,
        ManifestRecord,
        Outcome,
        QualityRecord,
        Registered,
        StepClaim,
        uuid7,
    )

__all__ = [
    "Catalog",
    "EpisodeCard",
    "EpisodeRow",
    "LabelRecord",
    "ManifestRecord",
    "Outcome",
    "QualityRecord",
    "Registered",
    "StepClaim",
    "uuid7",
]


def __getattr__(name: str) -> Any:
    if name == "Catalog":
        return importlib.import_module("kinemill.pipelines.catalog.api").Catalog
    if name in __all__:
        return getattr(importlib.import_module("kinemill.pipelines.catalog.records"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
