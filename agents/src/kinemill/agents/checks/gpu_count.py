"""Every GPU that the inventory promises is there, and is the one it names."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS, expected_gpus, no_gpus_expected, nvml_missing
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.count", 1, ALWAYS, help="GPU count and UUIDs are those of the inventory")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a lost GPU, another count, another UUID or another model; UNKNOWN where it could not be counted."""
    expected = expected_gpus(ctx) or 0
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    missing = nvml_missing(facts)
    if missing is not None:
        return worst(CHECK, [missing])
    counted = facts.reading("nvml.count")
    evidence = {"count": str(counted.value if counted.error is None else counted.error), "expected": str(expected)}
    if not isinstance(counted.value, int):
        return worst(CHECK, [unknown("count_unknown", f"GPU count: {counted.error or 'garbage'}")], evidence)
    return worst(CHECK, list(_findings(facts, ctx, counted.value, expected)), evidence)


def _findings(facts: Facts, ctx: Context, count: int, expected: int) -> list[Finding]:
    lost = [g.index for g in facts.gpus() if "GpuIsLost" in {r.error for r in g.readings.values()}]
    hard = {"cls": CheckClass.TRANSIENT, "action": FixAction.REBOOT, "limit": str(expected), "source": "inventory"}
    found = [fail("gpu_lost", f"gpu{i} fell off the bus", **hard) for i in lost]
    if count != expected:
        found.append(fail("gpu_count", f"{count} GPUs, {expected} expected", **hard))
    stated = set(ctx.settings.hardware.gpu_uuids)
    seen = {g.get("uuid").value for g in facts.gpus() if g.get("uuid").error is None}
    if stated and seen and len(seen) == count and seen != stated:
        strange = sorted(str(u) for u in seen - stated)
        text = f"{len(strange)} GPU(s) not in the inventory: {', '.join(strange)}"
        found.append(fail("gpu_uuid", text, cls=CheckClass.HARD, action=FixAction.ISOLATE, source="inventory"))
    if ctx.sku.gpu_name:
        for gpu in facts.gpus():
            name = gpu.get("name")
            if name.error is None and not str(name.value).startswith(ctx.sku.gpu_name):
                text = f"gpu{gpu.index} is '{name.value}', expected {ctx.sku.gpu_name}"
                found.append(fail("gpu_model", text, cls=CheckClass.CONFIG, source=f"sku {ctx.sku.name}"))
    return found or [ok(f"{count} GPUs")]
