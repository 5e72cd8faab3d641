"""The NVIDIA library loads and the driver answers. First in the order of truth."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS, expected_gpus, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.nvml", 1, ALWAYS, help="the NVIDIA management library loads and the driver answers")
NEEDS = ("nvml",)

_BROKEN = {
    "LibraryNotFound": ("library_missing", "libnvidia-ml.so.1 is missing or cannot be loaded"),
    "DriverNotLoaded": ("driver_not_loaded", "the NVIDIA driver is not loaded"),
    "LibRmVersionMismatch": ("version_mismatch", "library and driver are of different versions"),
    "GpuIsLost": ("gpu_lost", "a GPU fell off the bus"),
    "NoPermission": ("no_permission", "no right to talk to the driver"),
}


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL where the inventory promises GPUs and the library or the driver is not there."""
    started = facts.reading("nvml.init")
    evidence = {"nvml.init": started.error or "ok", "driver": str(facts.reading("nvml.driver").value or "?")}
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)], evidence)
    if started.error is None:
        return worst(CHECK, [ok(f"driver {evidence['driver']}")], evidence)
    if started.error in _BROKEN:
        code, detail = _BROKEN[started.error]
        finding = fail(
            code,
            f"{detail}; {expected_gpus(ctx)} GPUs expected",
            cls=CheckClass.TRANSIENT,
            action=FixAction.REBOOT,
            limit=str(expected_gpus(ctx)),
            source="inventory",
        )
    else:
        finding = unknown("nvml_no_answer", f"NVML: {started.error}, probe {facts.how('nvml')}")
    return worst(CHECK, [finding], evidence)
