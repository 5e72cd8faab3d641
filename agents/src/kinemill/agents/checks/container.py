"""The container runtime really runs something."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, skip, unknown, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult

CHECK = Check(
    "container.run",
    1,
    (CheckContext.PERIODIC, CheckContext.BOOT, CheckContext.CLI),
    timeout_s=6.0,
    cache_s=300.0,
    help="the container runtime runs something",
)
NEEDS = ("container",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.container_command else "no container runtime is stated for this node"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL (transient) where the run exits with anything but 0."""
    command = ctx.settings.hardware.container_command
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    seen = facts.get("container.run")
    if not isinstance(seen, dict):
        return worst(CHECK, [unknown("container_unread", f"probe {facts.how('container')}")])
    evidence = {"command": " ".join(command), **{k: str(v) for k, v in seen.items()}}
    if seen.get("error"):
        text = f"{command[0]}: {seen['error']}"
        return worst(CHECK, [fail("container_missing", text, cls=CheckClass.CONFIG, source="inventory")], evidence)
    if seen.get("exit") != 0:
        text = f"{command[0]} exited {seen.get('exit')}: {seen.get('last')}"
        return worst(CHECK, [fail("container_fails", text, limit="exit 0", source="measured")], evidence)
    return worst(CHECK, [ok()], evidence)
