"""The driver's own verdict on each GPU: what it says it needs to recover."""

from __future__ import annotations

from kinemill.agents.checks import Finding, fail, ok, skip, unknown, worst
from kinemill.agents.checks._gpu import ALWAYS, for_each_gpu, no_gpus_expected
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts, Gpu, Reading
from kinemill.contracts.checks import Check, CheckClass, CheckResult, FixAction

CHECK = Check("gpu.recovery", 1, ALWAYS, help="the driver asks for no reset, reboot or drain (NVML field 230)")
NEEDS = ("nvml",)

_ACTIONS = {
    1: ("reset", "GPU reset", FixAction.RESET),
    2: ("reboot", "node reboot", FixAction.REBOOT),
    3: ("drain_p2p", "drain peer-to-peer traffic", FixAction.RESET),
    4: ("drain_reset", "drain, then reset", FixAction.RESET),
    5: ("imex", "IMEX recovery", FixAction.RESET),
    6: ("bus_reset", "bus reset", FixAction.REBOOT),
    7: ("system_reboot", "system reboot", FixAction.REBOOT),
}


def _judge(gpu: Gpu, value: Reading) -> Finding | None:
    if value.value == 0:
        return ok()
    if value.value not in _ACTIONS:
        return unknown("recovery_unknown", f"gpu{gpu.index}: recovery action {value.value} is not known here")
    code, text, action = _ACTIONS[value.value]
    return fail(
        f"recovery_{code}",
        f"gpu{gpu.index}: the driver asks for {text}",
        cls=CheckClass.TRANSIENT,
        action=action,
        limit="none",
        source="driver",
    )


def not_here(ctx: Context) -> str:
    """Why this node has nothing to judge."""
    return "the inventory states no GPU" if no_gpus_expected(ctx) else ""


def judge(facts: Facts, ctx: Context) -> CheckResult:
    """FAIL on any action; older drivers do not have the field, which is SKIP."""
    if aside := not_here(ctx):
        return worst(CHECK, [skip(aside)])
    findings = list(for_each_gpu(facts, ctx, "recovery", _judge))
    evidence = {f"gpu{g.index}": str(g.get("recovery").value) for g in facts.gpus() if g.get("recovery").error is None}
    return worst(CHECK, findings or [skip("this driver does not report a recovery action")], evidence)
