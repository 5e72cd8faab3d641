"""Each GPU's PCIe link has the width and generation of its SKU."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.pcie", 1, ALWAYS, help="PCIe width and generation of each GPU")
NEEDS = ("nvml",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a narrower link. A lower generation only WARNs: an idle GPU lowers it to save power."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    width, generation = ctx.sku.pcie_width, ctx.sku.pcie_generation
    if width is None and generation is None:
        return worst(CHECK, [skip("the SKU states no PCIe link")])
    findings: list[Finding] = []

    def narrow(gpu: Gpu, value: Reading) -> Finding | None:
        if width is None or value.value >= width.value:
            return ok()
        limit = {"limit": str(width.value), "source": width.source}
        if value.value <= 0:
            return unknown("pcie_width_zero", f"gpu{gpu.index}: PCIe width read as {value.value}")
        return fail(
            "pcie_width",
            f"gpu{gpu.index}: PCIe x{value.value}, x{width.value} expected",
            cls=CheckClass.TRANSIENT,
            action=FixAction.REBOOT,
            **limit,
        )

    def slow(gpu: Gpu, value: Reading) -> Finding | None:
        if generation is None or value.value >= generation.value:
            return ok()
        idle = not gpu.get("processes").value
        if idle:
            return ok()
        text = f"gpu{gpu.index}: PCIe gen {value.value} under load, gen {generation.value} expected"
        return warn("pcie_gen", text, action=FixAction.WATCH, limit=str(generation.value), source=generation.source)

    findings += for_each_gpu(facts, ctx, "pcie_width", narrow)
    findings += for_each_gpu(facts, ctx, "pcie_generation", slow)
    return worst(CHECK, findings or [skip("these GPUs do not report a PCIe link")])
