"""Every mount point that jobs need is mounted and answers."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckResult, FixAction

CHECK = Check("mounts", 1, ALWAYS, help="needed mounts are there and answer in time")
NEEDS = ("mounts",)

AGAIN_S = 5
"""A second silence counts from this many seconds after the first."""


def _hanging(mount: str, facts: Facts) -> Finding:
    """One slow answer is a busy server; one that was silent in an earlier round too is dead."""
    before = (facts.get("mount.hung") or {}).get(mount)
    text = f"{mount} does not answer (probe {facts.how('mounts')})"
    if before is None or before < AGAIN_S:
        return unknown("mount_slow", text)
    return fail("mount_hang", text, action=FixAction.REBOOT, limit=f"{CHECK.timeout_s:g} s twice", source="measured")


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.mounts else "no mount is stated for this node"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a mount that is missing, errs or hangs; UNKNOWN on those behind a hanging one."""
    wanted = ctx.settings.hardware.mounts
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    table = facts.get("mounts.table")
    if table is None:
        return worst(CHECK, [unknown("mounts_unread", f"probe {facts.how('mounts')}")])
    findings: list[Finding] = []
    evidence: dict[str, str] = {}
    for mount in wanted:
        seen = facts.get(f"mount.{mount}")
        evidence[mount] = f"{table.get(mount)}: {seen}"
        if table.get(mount) is None:
            findings.append(fail("not_mounted", f"{mount} is not mounted", action=FixAction.WATCH, source="inventory"))
        elif seen is None:
            findings.append(unknown("mount_unread", f"{mount}: another mount hung before it"))
        elif seen.get("probing"):
            findings.append(_hanging(mount, facts))
        elif "error" in seen:
            findings.append(fail("mount_error", f"{mount}: {seen['error']}", action=FixAction.WATCH, source="measured"))
        else:
            findings.append(ok())
    return worst(CHECK, findings, evidence)
