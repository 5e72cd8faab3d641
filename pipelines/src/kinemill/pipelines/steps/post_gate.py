"""Step `post_gate`: is each converted episode sound, whole and plausible? What is not is never uploaded."""

from __future__ import annotations

from dataclasses import dataclass

from kinemill.contracts import GateRole, StepResult, StepSpec, StepStatus
from kinemill.pipelines.adapters.base import Finding, Level
from kinemill.pipelines.gates import Converted, judge_converted
from kinemill.pipelines.steps.aside import put_aside
from kinemill.pipelines.steps.convert import ConvertedAll
from kinemill.pipelines.steps.pre_gate import Inspected
from kinemill.pipelines.steps.registry import StepContext, step

__all__ = ["STEP", "Judged", "JudgedAll"]

SPEC = StepSpec("post_gate", version=1, gate=GateRole.POST, timeout_s=600.0, requires=("convert",))


@dataclass(frozen=True, slots=True)
class Judged:
    """An episode that may be published."""

    episode: Converted
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class JudgedAll:
    """What the gate leaves for the next step."""

    episodes: tuple[Judged, ...]


@step(SPEC)
def STEP(ctx: StepContext) -> StepResult:  # noqa: N802 - the registry's name for it
    """Judge the measures; its count `left` says how many episodes passed."""
    inspected = ctx.load(Inspected, "facts.json")
    facts = {e.index: e for e in inspected.facts.episodes}
    good: list[Judged] = []
    refused = 0
    for converted in ctx.load(ConvertedAll, "converted.json").episodes:
        findings = judge_converted(
            converted, facts.get(converted.index), ctx.vendor, f"{ctx.source.key}{facts[converted.index].key}"
        )
        bad = [f for f in findings if f.level is Level.FAIL]
        if bad:
            refused += 1
            put_aside(ctx, "post_gate", facts[converted.index].key, bad)
            (ctx.workdir / converted.file).unlink(missing_ok=True)
        else:
            good.append(Judged(converted, tuple(findings)))
    digest = ctx.save("judged.json", JudgedAll(tuple(good)))
    warned = tuple(f.message for j in good for f in j.findings if f.level is Level.WARN)
    status = StepStatus.WARN if warned or refused else StepStatus.OK
    counts = {"left": len(good), "refused": refused}
    return ctx.result(SPEC, status, output_digest=digest, messages=warned, counts=counts)
