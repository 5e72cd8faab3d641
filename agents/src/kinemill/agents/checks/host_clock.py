"""The clock is synchronised: munge, leases and logs depend on it."""

from __future__ import annotations

from kinemill.agents.checks import ok, skip, warn, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult

CHECK = Check(
    "host.clock",
    1,
    (CheckContext.PERIODIC, CheckContext.BOOT, CheckContext.CLI),
    cache_s=60.0,
    help="time is synchronised",
)
NEEDS = ("clock",)


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """WARN where the system says that it is not synchronised; a job does not fail for it."""
    del ctx
    clock = facts.get("clock.state") or {}
    if clock.get("synchronized") is None:
        return worst(CHECK, [skip("no time service answers on this node")])
    if clock["synchronized"]:
        return worst(CHECK, [ok("synchronised")])
    text = "the clock is not synchronised; see timedatectl"
    return worst(CHECK, [warn("clock_unsynced", text, cls=CheckClass.CONFIG, source="system")])
