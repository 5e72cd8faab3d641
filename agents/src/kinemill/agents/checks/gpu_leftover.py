"""No process and no memory of an earlier job is left on the GPUs that a job is about to get."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, warn, worst
from kinemill.agents.checks._gpu import for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult, FixAction

CHECK = Check(
    "gpu.leftover",
    1,
    (CheckContext.PROLOG, CheckContext.EPILOG, CheckContext.CLI),
    help="no process or memory of an earlier job on this job's GPUs",
)
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a process before a job or after one; from the command line it only WARNs, since jobs may run."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    unlisted = ctx.job is not None and ctx.job.gpus is None
    if unlisted and facts.get("job.lists"):
        return worst(CHECK, [skip("this job has no GPUs")])
    # A full run has this check only while its own fault is open. Without a list nobody knows whose processes these are.
    hook = ctx.context is not CheckContext.CLI and not unlisted
    limit = ctx.sku.idle_gpu_memory_mb

    def processes(gpu: Gpu, value: Reading) -> Finding | None:
        if not value.value:
            return ok()
        text = f"gpu{gpu.index}: process {', '.join(str(p) for p in value.value[:5])} still there"
        if not hook:
            return warn("gpu_busy", text)
        return fail("gpu_process", text, cls=CheckClass.TRANSIENT, action=FixAction.RESET, limit="0", source="policy")

    def memory(gpu: Gpu, value: Reading) -> Finding | None:
        if limit is None or gpu.get("processes").value or not hook:
            return ok()
        used_mb = int(value.value["used"]) >> 20
        if used_mb <= limit.value:
            return ok()
        more = {"limit": str(limit.value), "source": limit.source, "action": FixAction.RESET}
        return fail("gpu_memory", f"gpu{gpu.index}: {used_mb} MB in use without a process", **more)

    findings = [*for_each_gpu(facts, ctx, "processes", processes), *for_each_gpu(facts, ctx, "memory", memory)]
    return worst(CHECK, findings or [skip("these GPUs report neither processes nor memory")])
