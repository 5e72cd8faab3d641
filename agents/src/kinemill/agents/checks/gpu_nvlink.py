"""Each GPU has as many active NVLinks as its SKU says."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.nvlink", 1, ALWAYS, help="active NVLinks of each GPU")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "no NVLink is stated for this node" if no_gpus_expected(ctx) or ctx.sku.nvlinks is None else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on fewer links than the SKU's; nothing is judged where it states none."""
    limit = ctx.sku.nvlinks
    if not_here(ctx) or limit is None:
        return worst(CHECK, [skip(not_here(ctx))])

    def few(gpu: Gpu, value: Reading) -> Finding | None:
        if value.value >= limit.value:
            return ok()
        return fail(
            "nvlink_down",
            f"gpu{gpu.index}: {value.value} NVLinks active, {limit.value} expected",
            cls=CheckClass.TRANSIENT,
            action=FixAction.RESET,
            limit=str(limit.value),
            source=limit.source,
        )

    findings = list(for_each_gpu(facts, ctx, "nvlinks", few))
    return worst(CHECK, findings or [skip("these GPUs have no NVLink")])
