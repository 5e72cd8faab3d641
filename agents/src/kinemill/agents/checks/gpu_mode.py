"""Persistence mode is on, and MIG is as the inventory says."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.mode", 1, ALWAYS, help="persistence mode and MIG are as configured")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL (config) where MIG differs, WARN where persistence is off."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])

    def persistence(gpu: Gpu, value: Reading) -> Finding | None:
        if value.value:
            return ok()
        return warn("persistence_off", f"gpu{gpu.index}: persistence mode is off", limit="on", source="inventory")

    def mig(gpu: Gpu, value: Reading) -> Finding | None:
        if not (isinstance(value.value, list) and len(value.value) == 2):
            return unknown("mig_garbage", f"gpu{gpu.index}: MIG mode read as {value.value!r}")
        current, pending = (bool(x) for x in value.value)
        if current == pending == ctx.settings.hardware.mig:
            return ok()
        text = f"gpu{gpu.index}: MIG {current} (pending {pending}), inventory says {ctx.settings.hardware.mig}"
        return fail("mig_mode", text, cls=CheckClass.CONFIG, action=FixAction.RESET, source="inventory")

    findings = [*for_each_gpu(facts, ctx, "persistence", persistence), *for_each_gpu(facts, ctx, "mig", mig)]
    return worst(CHECK, findings or [skip("these GPUs report neither mode")])
