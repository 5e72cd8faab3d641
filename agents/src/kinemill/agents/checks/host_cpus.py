"""As many CPUs are online as the inventory says (not as slurm.conf says)."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("host.cpus", 1, ALWAYS, help="online CPUs, against the inventory")
NEEDS = ("host",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.cpus is not None else "the inventory states no CPU count"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on fewer CPUs than stated."""
    expected = ctx.settings.hardware.cpus
    if expected is None:
        return worst(CHECK, [skip(not_here(ctx))])
    online = facts.get("host.cpus_online")
    if not isinstance(online, int):
        return worst(CHECK, [unknown("cpus_unread", f"CPUs not counted (probe {facts.how('host')})")])
    evidence = {"online": str(online)}
    if online < expected:
        text = f"{online} CPUs online, {expected} expected"
        more = {"action": FixAction.REBOOT, "limit": str(expected), "source": "inventory"}
        return worst(CHECK, [fail("cpus_missing", text, cls=CheckClass.HARD, **more)], evidence)
    return worst(CHECK, [ok(f"{online} CPUs")], evidence)
