"""Each GPU has joined the NVLink fabric with success: the state "completed" alone is not enough."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.fabric", 1, ALWAYS, help="GPUs have joined the NVLink fabric, with success")
NEEDS = ("nvml",)

_NOT_SUPPORTED, _NOT_STARTED, _IN_PROGRESS, _COMPLETED = range(4)


def _judge(gpu: Gpu, value: Reading) -> Finding | None:
    if not (isinstance(value.value, list) and len(value.value) == 2):
        return unknown("fabric_garbage", f"gpu{gpu.index}: fabric state read as {value.value!r}")
    state, status = value.value
    if state == _NOT_SUPPORTED:
        return None
    if state in (_NOT_STARTED, _IN_PROGRESS):
        return unknown("fabric_not_ready", f"gpu{gpu.index}: the fabric is not ready; is the fabric manager running?")
    if state == _COMPLETED and status == 0:
        return ok()
    text = f"gpu{gpu.index}: fabric state {state}, status {status}"
    return fail("fabric_status", text, cls=CheckClass.TRANSIENT, action=FixAction.RESET, limit="0", source="driver")


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "no NVLink is stated for this node" if no_gpus_expected(ctx) or ctx.sku.nvlinks is None else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL where a GPU completed without success; drivers and GPUs without a fabric are SKIP."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    findings = list(for_each_gpu(facts, ctx, "fabric", _judge))
    evidence = {f"gpu{g.index}": str(g.get("fabric").value) for g in facts.gpus() if g.get("fabric").error is None}
    return worst(CHECK, findings or [skip("these GPUs have no fabric, or their driver does not report it")], evidence)
