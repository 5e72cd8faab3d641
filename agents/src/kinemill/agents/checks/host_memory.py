"""The node has the memory that the inventory says (not what slurm.conf says)."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("host.memory", 1, ALWAYS, help="installed memory, against the inventory")
NEEDS = ("host",)

TOLERANCE = 0.03
"""The kernel keeps some for itself: a node shows up to about 3 % less than its modules hold (measured)."""


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.memory_mb is not None else "the inventory states no memory"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL where a module is missing."""
    expected = ctx.settings.hardware.memory_mb
    if expected is None:
        return worst(CHECK, [skip(not_here(ctx))])
    seen = facts.get("host.memory_mb")
    if not isinstance(seen, int):
        return worst(CHECK, [unknown("memory_unread", f"memory not read (probe {facts.how('host')})")])
    evidence = {"memory_mb": str(seen)}
    if seen < expected * (1 - TOLERANCE):
        text = f"{seen} MB of memory, {expected} MB expected"
        more = {"action": FixAction.ISOLATE, "limit": f"{expected} MB - 3 %", "source": "inventory"}
        return worst(CHECK, [fail("memory_missing", text, cls=CheckClass.HARD, **more)], evidence)
    return worst(CHECK, [ok(f"{seen} MB")], evidence)
