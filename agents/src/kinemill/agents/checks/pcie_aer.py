"""PCIe error counters that the kernel keeps since boot."""

from __future__ import annotations

from kinemill.agents.checks import fail, ok, unknown, warn, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckContext, CheckResult, FixAction

CHECK = Check(
    "pcie.aer",
    1,
    (CheckContext.PERIODIC, CheckContext.BOOT, CheckContext.EPILOG, CheckContext.CLI),
    help="fatal and non-fatal PCIe errors since boot",
)
NEEDS = ("pcie",)


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on fatal errors, WARN on non-fatal ones."""
    del ctx
    fatal, nonfatal = facts.get("pcie.fatal"), facts.get("pcie.nonfatal")
    if fatal is None or nonfatal is None:
        return worst(CHECK, [unknown("aer_unread", f"probe {facts.how('pcie')}")])
    evidence = {
        f"{kind}.{k}": str(v) for kind, table in (("fatal", fatal), ("nonfatal", nonfatal)) for k, v in table.items()
    }
    findings = [
        fail(
            "aer_fatal",
            f"{k}: {v} fatal PCIe errors",
            cls=CheckClass.TRANSIENT,
            action=FixAction.REBOOT,
            source="kernel",
        )
        for k, v in fatal.items()
    ]
    findings += [warn("aer_nonfatal", f"{k}: {v} non-fatal PCIe errors", source="kernel") for k, v in nonfatal.items()]
    return worst(CHECK, findings or [ok("none")], evidence)
