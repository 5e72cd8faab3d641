"""What the parts of kinemill agree on: frozen records, names and Protocols.

Every part is built against these, so parts can grow at different speeds. Records are plain data
with a `version`; their JSON is pinned by golden files, and an old file always loads. Changing a
contract needs an ADR. Nothing here imports more than the standard library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinemill.contracts.catalog import EPISODE_TRANSITIONS, EpisodeState, RunStatus, may_follow
    from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult, CheckStatus, FixAction
    from kinemill.contracts.clock import Clock
    from kinemill.contracts.episode import (
        ChunkTable,
        GopTable,
        GroupReceipt,
        Receipt,
        Rendition,
        TopicKind,
        TopicReceipt,
    )
    from kinemill.contracts.exits import ExitCode
    from kinemill.contracts.fleet import (
        REASON_MAX,
        REASON_PREFIX,
        DrainEvent,
        LedgerEntry,
        NodeReport,
        format_reason,
        parse_reason,
    )
    from kinemill.contracts.keys import EpisodeKey, episode_key, layout_key, parse_episode_key, shard_of
    from kinemill.contracts.manifest import BATCH_ROWS, MANIFEST_COLUMNS, MANIFEST_VERSION, ManifestColumn, ManifestMode
    from kinemill.contracts.metrics import METRICS, Metric
    from kinemill.contracts.quarantine import QuarantineRecord
    from kinemill.contracts.slurm import JobInfo, JobRequest, NodeInfo, ReservationInfo, SlurmAdmin, SlurmJobs
    from kinemill.contracts.steps import GateRole, StepResult, StepSpec, StepStatus
    from kinemill.contracts.store import AsyncStore, ObjectMeta, Store
    from kinemill.contracts.training import AttemptMeta, AttemptOutcome

__all__ = [
    "BATCH_ROWS",
    "EPISODE_TRANSITIONS",
    "MANIFEST_COLUMNS",
    "MANIFEST_VERSION",
    "METRICS",
    "REASON_MAX",
    "REASON_PREFIX",
    "AsyncStore",
    "AttemptMeta",
    "AttemptOutcome",
    "Check",
    "CheckClass",
    "CheckContext",
    "CheckResult",
    "CheckStatus",
    "ChunkTable",
    "Clock",
    "DrainEvent",
    "EpisodeKey",
    "EpisodeState",
    "ExitCode",
    "FixAction",
    "GateRole",
    "GopTable",
    "GroupReceipt",
    "JobInfo",
    "JobRequest",
    "LedgerEntry",
    "ManifestColumn",
    "ManifestMode",
    "Metric",
    "NodeInfo",
    "NodeReport",
    "ObjectMeta",
    "QuarantineRecord",
    "Receipt",
    "Rendition",
    "ReservationInfo",
    "RunStatus",
    "SlurmAdmin",
    "SlurmJobs",
    "StepResult",
    "StepSpec",
    "StepStatus",
    "Store",
    "TopicKind",
    "TopicReceipt",
    "episode_key",
    "format_reason",
    "layout_key",
    "may_follow",
    "parse_episode_key",
    "parse_reason",
    "shard_of",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "catalog": ("EPISODE_TRANSITIONS", "EpisodeState", "RunStatus", "may_follow"),
    "checks": ("Check", "CheckClass", "CheckContext", "CheckResult", "CheckStatus", "FixAction"),
    "clock": ("Clock",),
    "episode": ("ChunkTable", "GopTable", "GroupReceipt", "Receipt", "Rendition", "TopicKind", "TopicReceipt"),
    "exits": ("ExitCode",),
    "fleet": (
        "REASON_MAX",
        "REASON_PREFIX",
        "DrainEvent",
        "LedgerEntry",
        "NodeReport",
        "format_reason",
        "parse_reason",
    ),
    "keys": ("EpisodeKey", "episode_key", "layout_key", "parse_episode_key", "shard_of"),
    "manifest": ("BATCH_ROWS", "MANIFEST_COLUMNS", "MANIFEST_VERSION", "ManifestColumn", "ManifestMode"),
    "metrics": ("METRICS", "Metric"),
    "quarantine": ("QuarantineRecord",),
    "slurm": ("JobInfo", "JobRequest", "NodeInfo", "ReservationInfo", "SlurmAdmin", "SlurmJobs"),
    "steps": ("GateRole", "StepResult", "StepSpec", "StepStatus"),
    "store": ("AsyncStore", "ObjectMeta", "Store"),
    "training": ("AttemptMeta", "AttemptOutcome"),
}
"""Module -> names. A module is imported when one of its names is first asked for: a prolog that needs two records
must not pay for all of them."""
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import the module that a name lives in."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'kinemill.contracts' has no attribute '{name}'")
    from importlib import import_module

    value = getattr(import_module(f"kinemill.contracts.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names."""
    return __all__
