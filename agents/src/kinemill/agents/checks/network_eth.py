"""The Ethernet interfaces that the inventory names are up, fast enough, and steady."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, warn, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("net.ethernet", 1, ALWAYS, help="Ethernet links, their speed and flaps")
NEEDS = ("network",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.ethernet else "the inventory names no Ethernet interface"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a missing or down interface, WARN on speed and flaps."""
    names = ctx.settings.hardware.ethernet
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    findings: list[Finding] = []
    evidence: dict[str, str] = {}
    for name in names:
        seen = facts.get(f"eth.{name}")
        if not isinstance(seen, dict):
            findings.append(unknown("eth_unread", f"{name}: probe {facts.how('network')}"))
            continue
        evidence[name] = ", ".join(f"{k} {v}" for k, v in seen.items())
        findings += _interface(name, seen, ctx)
    return worst(CHECK, findings, evidence)


def _interface(name: str, seen: dict[str, object], ctx: Context) -> list[Finding]:
    if not seen.get("present"):
        return [fail("eth_missing", f"{name} is not there", cls=CheckClass.HARD, source="inventory")]
    if seen.get("operstate") not in ("up", "unknown"):
        return [fail("eth_down", f"{name} is {seen.get('operstate')}", action=FixAction.WATCH, source="inventory")]
    found: list[Finding] = []
    speed, limit = seen.get("speed_mbps"), ctx.sku.ethernet_rate_mbps
    if limit is not None and isinstance(speed, int) and 0 < speed < limit.value:
        found.append(warn("eth_speed", f"{name}: {speed} Mb/s", limit=str(limit.value), source=limit.source))
    flaps, most = seen.get("carrier_down_count"), ctx.sku.link_flaps
    if most is not None and isinstance(flaps, int) and flaps > most.value:
        text = f"{name}: lost its carrier {flaps} times since boot"
        found.append(warn("eth_flaps", text, limit=str(most.value), source=most.source))
    return found or [ok()]
