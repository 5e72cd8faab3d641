"""NVMe devices: how many, how worn, and whether they warn about themselves."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, warn, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult, FixAction

CHECK = Check(
    "disk.nvme",
    1,
    (CheckContext.PERIODIC, CheckContext.BOOT, CheckContext.CLI),
    cache_s=3600.0,
    help="count, wear and critical warnings of NVMe devices",
)
NEEDS = ("disk_health",)


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a missing device or a critical warning, WARN on wear."""
    devices = facts.get("nvme.devices")
    if devices is None:
        return worst(CHECK, [unknown("nvme_unread", f"probe {facts.how('disk_health')}")])
    expected = ctx.settings.hardware.nvme_devices
    findings: list[Finding] = []
    if expected is not None and len(devices) != expected:
        text = f"{len(devices)} NVMe devices, {expected} expected"
        findings.append(fail("nvme_count", text, cls=CheckClass.HARD, limit=str(expected), source="inventory"))
    if not devices and not findings:
        return worst(CHECK, [skip("no NVMe device")])
    evidence: dict[str, str] = {}
    for name in devices:
        seen = facts.get(f"nvme.{name}") or {"error": f"probe {facts.how('disk_health')}"}
        evidence[name] = ", ".join(f"{k} {v}" for k, v in seen.items())
        findings.append(_device(name, seen, ctx))
    return worst(CHECK, findings, evidence)


def _device(name: str, seen: dict[str, object], ctx: Context) -> Finding:
    if "missing_tool" in seen:
        text = f"{name}: {seen['missing_tool']} is not installed"
        return warn("smart_missing", text, cls=CheckClass.CONFIG, source="inventory")
    if "error" in seen:
        return unknown("smart_unread", f"{name}: {seen['error']}")
    if seen.get("critical_warning"):
        text = f"{name}: critical warning {seen['critical_warning']}"
        return fail("nvme_critical", text, cls=CheckClass.HARD, action=FixAction.ISOLATE, source="device")
    limit = ctx.sku.nvme_wear_percent
    used = seen.get("percentage_used")
    if limit is not None and isinstance(used, int) and used >= limit.value:
        return warn(
            "nvme_worn", f"{name}: {used} % of its rated life used", limit=f"{limit.value} %", source=limit.source
        )
    return ok()
