"""InfiniBand ports: how many are active, at which rate, and how often they went down since boot."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, warn, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("net.infiniband", 1, ALWAYS, help="InfiniBand ports, their state, rate and flaps")
NEEDS = ("network",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.infiniband_ports else "the inventory states no InfiniBand"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on fewer active ports than stated or a lower rate, WARN on flaps."""
    expected = ctx.settings.hardware.infiniband_ports
    if not expected:
        return worst(CHECK, [skip(not_here(ctx))])
    ports = facts.get("ib.ports")
    if ports is None:
        return worst(CHECK, [unknown("ib_unread", f"probe {facts.how('network')}")])
    active = [p for p in ports if str(p.get("state", "")).endswith("ACTIVE")]
    evidence = {str(p.get("port")): f"{p.get('state')}, {p.get('rate')}, down {p.get('link_downed')}x" for p in ports}
    findings: list[Finding] = []
    if len(active) < expected:
        text = f"{len(active)} InfiniBand ports active, {expected} expected"
        findings.append(fail("ib_down", text, action=FixAction.WATCH, limit=str(expected), source="inventory"))
    for port in active:
        findings += _port(port, ctx)
    return worst(CHECK, findings or [ok(f"{len(active)} ports")], evidence)


def _port(port: dict[str, object], ctx: Context) -> list[Finding]:
    found: list[Finding] = []
    rate, limit = str(port.get("rate") or "").split(" ")[0], ctx.sku.infiniband_rate_gbps
    if limit is not None and rate.isdigit() and int(rate) < limit.value:
        text = f"{port.get('port')}: {rate} Gb/s, {limit.value} expected"
        more = {"cls": CheckClass.TRANSIENT, "action": FixAction.WATCH}
        found.append(fail("ib_rate", text, limit=str(limit.value), source=limit.source, **more))
    flaps, most = port.get("link_downed"), ctx.sku.link_flaps
    if most is not None and isinstance(flaps, int) and flaps > most.value:
        text = f"{port.get('port')}: went down {flaps} times since boot"
        found.append(warn("ib_flaps", text, action=FixAction.WATCH, limit=str(most.value), source=most.source))
    return found
