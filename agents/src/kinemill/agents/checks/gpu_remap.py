"""Row remapping: a failed remap ends the GPU's life, a pending one needs a reset."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.remap", 1, ALWAYS, help="no row remap is pending and none has failed")
NEEDS = ("nvml",)


def _judge(gpu: Gpu, value: Reading) -> Finding | None:
    rows = value.value
    if not (isinstance(rows, list) and len(rows) == 4):
        return unknown("remap_garbage", f"gpu{gpu.index}: remapped rows read as {rows!r}")
    _, uncorrectable, pending, failed = rows
    if failed:
        text = f"gpu{gpu.index}: row remapping failed ({uncorrectable} uncorrectable rows)"
        return fail("remap_failure", text, cls=CheckClass.HARD, action=FixAction.ISOLATE, limit="0", source="driver")
    if pending:
        text = f"gpu{gpu.index}: a row remap waits for a reset"
        return fail("remap_pending", text, cls=CheckClass.TRANSIENT, action=FixAction.RESET, limit="0", source="driver")
    return ok()


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL hard on failure, transient on pending; rows remapped long ago are no fault."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    evidence = {f"gpu{g.index}": str(g.get("remap").value) for g in facts.gpus() if g.get("remap").error is None}
    findings = list(for_each_gpu(facts, ctx, "remap", _judge))
    return worst(CHECK, findings or [skip("these GPUs do not remap rows")], evidence)
