"""Attempts: one number per try of a run, and everything that each try left behind.

The number is claimed by exclusive create and told to all ranks, so it goes on over in-place restarts, requeues and
resubmits; torchrun's and Slurm's own counters restart and are only labels in `meta.json`. Layout::

    <run>/attempts/000002/meta.json        kinemill.contracts.AttemptMeta
    <run>/attempts/000002/metrics.jsonl    one line a step: loss curve
    <run>/attempts/000002/rank-00001/      stdout.log stderr.log stacks.txt flight.json error.json exit.json heartbeat
    <run>/attempts/early/<launch>-e<n>-<host>-<rank>/   the same for ranks that died before they had a number

Later attempts never touch an earlier one's folder. Nothing here imports torch when it is imported.
"""

from __future__ import annotations

from kinemill.training.attempts.evidence import Evidence, ExitReport, Verdict, read_verdict, write_verdict
from kinemill.training.attempts.history import claim, finish_meta, history, read_meta, root_cause, stuck, write_meta
from kinemill.training.attempts.restarts import Restarts, count_restarts

__all__ = [
    "Evidence",
    "ExitReport",
    "Restarts",
    "Verdict",
    "claim",
    "count_restarts",
    "finish_meta",
    "history",
    "read_meta",
    "read_verdict",
    "root_cause",
    "stuck",
    "write_meta",
    "write_verdict",
]
