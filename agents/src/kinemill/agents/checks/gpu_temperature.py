"""No GPU is hotter than its SKU's limit."""

from __future__ import annotations

from kinemill.agents.checks import Finding, ok, skip, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckResult, FixAction

CHECK = Check("gpu.temperature", 1, ALWAYS, help="GPU temperature; heat that matters shows as a slowdown in gpu.clocks")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return (
        "no temperature limit is stated for this node" if no_gpus_expected(ctx) or ctx.sku.temperature_c is None else ""
    )


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """WARN at the limit; never FAIL, since a hot GPU that does not slow down works."""
    limit = ctx.sku.temperature_c
    if not_here(ctx) or limit is None:
        return worst(CHECK, [skip(not_here(ctx))])

    def hot(gpu: Gpu, value: Reading) -> Finding | None:
        if value.value < limit.value:
            return ok()
        text = f"gpu{gpu.index}: {value.value} C"
        return warn("gpu_hot", text, action=FixAction.WATCH, limit=f"{limit.value} C", source=limit.source)

    findings = list(for_each_gpu(facts, ctx, "temperature_c", hot))
    return worst(CHECK, findings or [skip("these GPUs report no temperature")])
