"""Step `pre_gate`: is the recording readable, whole, and what its vendor says it is?"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

from kinemill.contracts import GateRole, StepResult, StepSpec, StepStatus
from kinemill.errors import EnvironmentFault
from kinemill.pipelines.adapters.base import Finding, Level, SourceFacts
from kinemill.pipelines.gates import judge_facts
from kinemill.pipelines.steps.aside import put_aside
from kinemill.pipelines.steps.registry import StepContext, step

__all__ = ["STEP", "Inspected"]

ROOM_PER_INPUT_BYTE = 1.5
"""An episode is smaller than its recording nearly always; raw state and an unlucky transcode may be larger."""
ROOM_ALWAYS = 64 << 20


@dataclass(frozen=True, slots=True)
class Inspected:
    """What the gate leaves for the next step."""

    facts: SourceFacts
    passed: tuple[int, ...]
    """Indices of the episodes that go on."""
    findings: tuple[Finding, ...]
    """Of the recording and of the episodes that go on, none of them FAIL."""


SPEC = StepSpec("pre_gate", version=1, gate=GateRole.PRE, mem_bytes=2 << 30, timeout_s=1800.0)


@step(SPEC)
def STEP(ctx: StepContext) -> StepResult:  # noqa: N802 - the registry's name for it
    """Inspect the recording; its count `left` says how many episodes go on."""
    need = int(ctx.input_bytes * ROOM_PER_INPUT_BYTE) + ROOM_ALWAYS
    free = shutil.disk_usage(ctx.workdir).free
    if free < need:
        raise EnvironmentFault(
            f"{ctx.workdir}: {free >> 20} MiB free, {ctx.source.key} needs {need >> 20} MiB: "
            "make room, or name another folder with --work-dir"
        )
    facts = ctx.sandbox.inspect(ctx.source, ctx.vendor)
    whole, each = judge_facts(facts, ctx.vendor, ctx.source.key)
    fatal = [f for f in whole if f.level is Level.FAIL]
    if fatal or not facts.episodes:
        put_aside(ctx, "pre_gate", "", fatal or [Finding("empty", Level.FAIL, f"{ctx.source.key}: no episode inside")])
        ctx.save("facts.json", Inspected(facts, (), ()))
        told = tuple(f.message for f in fatal)
        return ctx.result(SPEC, StepStatus.WARN, messages=told, counts={"episodes": len(facts.episodes), "left": 0})
    passed: list[int] = []
    kept = list(whole)
    for episode in facts.episodes:
        bad = [f for f in each[episode.index] if f.level is Level.FAIL]
        if bad:
            put_aside(ctx, "pre_gate", episode.key, bad)
        else:
            passed.append(episode.index)
            kept += each[episode.index]
    digest = ctx.save("facts.json", Inspected(facts, tuple(passed), tuple(kept)))
    warned = [f.message for f in kept if f.level is Level.WARN]
    status = StepStatus.WARN if warned or len(passed) < len(facts.episodes) else StepStatus.OK
    counts = {"episodes": len(facts.episodes), "left": len(passed)}
    return ctx.result(SPEC, status, output_digest=digest, messages=tuple(warned), counts=counts)
