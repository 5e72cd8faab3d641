"""Local file systems have room and inodes, are writable, and give back what was written."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("disk.local", 1, ALWAYS, help="room, inodes, write-read probe and read-only state of local disks")
NEEDS = ("disk",)

_QUOTA = "Disk quota exceeded"


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "" if ctx.settings.hardware.scratch_dirs else "no local folder is stated for this node"


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on a read-only disk, a failed write probe, or less room than the limit."""
    folders = ctx.settings.hardware.scratch_dirs
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    findings: list[Finding] = []
    evidence: dict[str, str] = {}
    for folder in folders:
        seen = facts.get(f"disk.{folder}")
        if not isinstance(seen, dict):
            findings.append(unknown("disk_unread", f"{folder}: probe {facts.how('disk')}"))
            continue
        evidence[folder] = ", ".join(f"{k} {v}" for k, v in seen.items())
        findings += _folder(folder, seen, ctx)
    return worst(CHECK, findings, evidence)


def _folder(folder: str, seen: dict[str, object], ctx: Context) -> list[Finding]:
    if "error" in seen:
        return [fail("disk_missing", f"{folder}: {seen['error']}", cls=CheckClass.CONFIG, source="inventory")]
    if seen.get("read_only"):
        return [fail("read_only", f"{folder} is mounted read-only", action=FixAction.REBOOT, source="kernel")]
    found: list[Finding] = []
    for key, floor, what in (
        ("free_percent", ctx.settings.checks.min_free_percent, "room"),
        ("free_inodes_percent", ctx.settings.checks.min_free_inodes_percent, "inodes"),
    ):
        free = seen.get(key)
        if isinstance(free, int | float) and free < floor:
            text = f"{folder}: {free:.1f} % {what} free"
            found.append(fail("full", text, action=FixAction.WATCH, limit=f"{floor:g} %", source="settings"))
    write = str(seen.get("write"))
    if write != "ok" and _QUOTA not in write:  # a user's quota is the user's, not the node's
        found.append(fail("write_probe", f"{folder}: write probe: {write}", action=FixAction.REBOOT, source="measured"))
    return found or [ok()]
