"""The node's Slurm configuration is the one that was deployed."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, skip, unknown, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult

CHECK = Check(
    "slurm.conf",
    1,
    (CheckContext.PERIODIC, CheckContext.BOOT, CheckContext.CLI),
    help="slurm.conf has the content that was deployed",
)
NEEDS = ("slurm_conf",)


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.slurm_conf else "no slurm.conf hash is stated for this node"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL (config: never drains) where the hash differs."""
    hardware = ctx.settings.hardware
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    seen = facts.get("slurm_conf.sha256")
    if seen is None:
        return worst(CHECK, [unknown("slurm_conf_unread", f"{hardware.slurm_conf}: probe {facts.how('slurm_conf')}")])
    if seen != hardware.slurm_conf_sha256:
        text = f"{hardware.slurm_conf} is not the deployed one; run the slurm playbook"
        return worst(
            CHECK, [fail("slurm_conf_drift", text, cls=CheckClass.CONFIG, source="inventory")], {"sha256": seen}
        )
    return worst(CHECK, [ok()])
