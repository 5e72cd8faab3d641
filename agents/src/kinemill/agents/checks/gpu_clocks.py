"""Why clocks are held down: hardware slowdown and power brake are faults, power capping is life."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.clocks", 1, ALWAYS, help="no hardware slowdown, thermal slowdown or power brake")
NEEDS = ("nvml",)

# Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h.
_FAULTS = {0x80: ("power_brake", "power brake"), 0x8: ("hw_slowdown", "hardware slowdown")}
_HOT = {0x40: ("hw_thermal", "hardware thermal slowdown"), 0x20: ("sw_thermal", "software thermal slowdown")}


def _judge(gpu: Gpu, value: Reading) -> Finding | None:
    bits = int(value.value)
    for bit, (code, text) in {**_HOT, **_FAULTS}.items():
        if bits & bit:
            detail = f"gpu{gpu.index}: {text}"
            if code == "sw_thermal":
                return warn(code, detail, action=FixAction.WATCH, limit="none", source="driver")
            return fail(code, detail, cls=CheckClass.TRANSIENT, action=FixAction.WATCH, limit="none", source="driver")
    return ok()


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on hardware causes, WARN on software thermal; idle and power capping pass."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    evidence = {
        f"gpu{g.index}": hex(int(g.get("clock_events").value)) for g in facts.gpus() if g.get("clock_events").value
    }
    findings = list(for_each_gpu(facts, ctx, "clock_events", _judge))
    return worst(CHECK, findings or [skip("these GPUs do not report clock events")], evidence)
