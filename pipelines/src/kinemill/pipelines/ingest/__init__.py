"""From a vendor's drop to published episodes: plan, run, resume.

    >>> report = ingest_drop(Path("drops/gantry_ros2"), "gantry_ros2", store=store, ledger=ledger, work_dir=work)
    >>> report.published, [q.message for q in report.quarantined]

Raw drops are never changed. What is done is known by (batch, step, step version, input digest) in the ledger,
so a second run does nothing and says so, and a run that was killed is simply started again.
"""

from __future__ import annotations

from kinemill.pipelines.ingest.events import Event
from kinemill.pipelines.ingest.ledger import EpisodeEntry, Ledger, MemoryLedger
from kinemill.pipelines.ingest.plan import IngestPlan, PlanItem, plan_drop
from kinemill.pipelines.ingest.runner import IngestReport, ingest_drop

__all__ = [
    "EpisodeEntry",
    "Event",
    "IngestPlan",
    "IngestReport",
    "Ledger",
    "MemoryLedger",
    "PlanItem",
    "ingest_drop",
    "plan_drop",
]
