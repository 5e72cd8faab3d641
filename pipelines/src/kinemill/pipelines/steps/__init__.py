"""The steps of ingestion: a registry of functions from a recording and a work folder to a result.

The same step runs in a test, in the local runner and in a batch job. Steps hand each other files in the work
folder (`facts.json`, `converted.json`, `judged.json`), never objects.
"""

from __future__ import annotations

from kinemill.pipelines.steps.registry import Step, StepContext, step, steps

__all__ = ["Step", "StepContext", "step", "steps"]
