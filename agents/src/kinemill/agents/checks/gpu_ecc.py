"""ECC errors since boot. Aggregate counters are shown as evidence and never judged.

250,000 corrected errors since boot drain a node; 250,000 in a lifetime with none since boot pass.
"""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.ecc", 1, ALWAYS, help="ECC errors since boot: uncorrected fail, corrected warn and fail at limits")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on any uncorrected error since boot, or on corrected ones at the SKU's limit."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])

    def uncorrected(gpu: Gpu, value: Reading) -> Finding | None:
        if value.value == 0:
            return ok()
        return fail(
            "ecc_vol_unc",
            f"gpu{gpu.index}: {value.value} uncorrected ECC since boot",
            cls=CheckClass.TRANSIENT,
            action=FixAction.RESET,
            limit="0",
            source="vendor sheet: an uncorrected error loses data",
        )

    def corrected(gpu: Gpu, value: Reading) -> Finding | None:
        text = f"gpu{gpu.index}: {value.value} corrected ECC since boot"
        high, low = ctx.sku.ecc_corrected_fail, ctx.sku.ecc_corrected_warn
        if high is not None and value.value >= high.value:
            limit = {"limit": str(high.value), "source": high.source}
            return fail("ecc_vol_cor", text, cls=CheckClass.TRANSIENT, action=FixAction.RESET, **limit)
        if low is not None and value.value >= low.value:
            return warn("ecc_vol_cor", text, action=FixAction.WATCH, limit=str(low.value), source=low.source)
        return ok()

    evidence = {
        f"gpu{g.index}.{name.removeprefix('ecc_')}": str(g.get(name).value)
        for g in facts.gpus()
        for name in (
            "ecc_volatile_uncorrected",
            "ecc_volatile_corrected",
            "ecc_aggregate_uncorrected",
            "ecc_aggregate_corrected",
        )
        if g.get(name).value
    }
    findings = [
        *for_each_gpu(facts, ctx, "ecc_volatile_uncorrected", uncorrected),
        *for_each_gpu(facts, ctx, "ecc_volatile_corrected", corrected),
    ]
    return worst(CHECK, findings or [skip("ECC is not supported on these GPUs")], evidence)
