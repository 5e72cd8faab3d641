"""XIDs and SXids since boot (and since the last acknowledgement), judged by the table.

An application's own XID is a note for its job; the same GPU showing one in a third distinct job
is the GPU's fault. For a job on a part of the node, XIDs of GPUs that are known to be others' do not count; a GPU that
NVML no longer reaches is everybody's, and so is a switch.
"""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, warn, worst
from kinemill.agents.checks._gpu import ALWAYS, no_gpus_expected
from kinemill.agents.checks._kernel import kernel_lines, kernel_missing, lost_lines
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.agents.xids import XidEvent, parse_xid, pci_key, rule_for
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.xid", 1, ALWAYS, help="XIDs and SXids since boot, by a table with sources")
NEEDS = ("kernel_log", "nvml")

DISTINCT_JOBS = 3
"""An application-caused XID in this many different jobs on one GPU within a day is hardware."""


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on node-fatal XIDs and on repeated application ones, WARN on watched ones."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    missing = kernel_missing(facts)
    if missing is not None:
        return worst(CHECK, [missing])
    events = [e for e in (parse_xid(at, text) for at, text in kernel_lines(facts)) if e is not None]
    repeated: dict[str, int] = facts.get("xid.jobs") or {}
    evidence = {
        f"{e.pci}/{'sxid' if e.switch else 'xid'}{e.number}": f"{e.at_s:.0f} s after boot" for e in events[-20:]
    }
    strange = _others(facts, ctx)
    mine = [e for e in events if e.switch or e.pci not in strange]
    findings = [_one(e, ctx, repeated) for e in mine]
    findings += lost_lines(facts)
    none = "no XID since boot" if not events else "none since boot on this job's GPUs"
    return worst(CHECK, findings or [ok(none)], evidence)


def _others(facts: Facts, ctx: Context) -> set[str]:
    """Addresses of the GPUs that a job on a shared node does not have; empty for all else."""
    if ctx.job is None or ctx.job.gpus is None:
        return set()
    addresses = {g.slot: g.get("pci") for g in facts.gpus() if g.get("minor").error is None}
    return {pci_key(str(a.value)) for slot, a in addresses.items() if slot not in ctx.job.gpus and a.error is None}


def _one(event: XidEvent, ctx: Context, repeated: dict[str, int]) -> Finding:
    if event.switch:
        text = f"NVSwitch {event.pci}: SXid {event.number}"
        if event.fatal:
            more = {"cls": CheckClass.TRANSIENT, "action": FixAction.REBOOT}
            return fail("sxid_fatal", f"{text} fatal", source="driver", **more)
        return warn("sxid", text, action=FixAction.WATCH, source="driver")
    rule = rule_for(event.number, ctx.settings.checks.xid_actions)
    text = f"{event.pci}: XID {event.number} {rule.text}"
    jobs = repeated.get(event.pci, 0)
    if rule.action == "app":
        if jobs >= DISTINCT_JOBS:
            return fail(
                "xid_repeated",
                f"{event.pci}: application XIDs in {jobs} jobs",
                cls=CheckClass.HARD,
                action=FixAction.ISOLATE,
                limit=f"{DISTINCT_JOBS} jobs in 24 h",
                source="policy",
            )
        return warn(f"xid_{event.number}", text, cls=CheckClass.APP, action=FixAction.WATCH, source=rule.source)
    if rule.action == "none":
        return ok(text)
    if rule.action == "watch":
        return warn(f"xid_{event.number}", text, action=FixAction.WATCH, source=rule.source)
    cls = CheckClass.HARD if rule.action == "isolate" else CheckClass.TRANSIENT
    return fail(f"xid_{event.number}", text, cls=cls, action=rule.fix, source=rule.source)
