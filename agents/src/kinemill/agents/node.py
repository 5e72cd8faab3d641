"""One run on this node, from reading to verdict: what hooks, timers and `kinemill node check` call."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kinemill.agents.checks import CheckModule
from kinemill.agents.context import Context, context_for
from kinemill.agents.facts import Facts
from kinemill.agents.metrics import count, write_metrics
from kinemill.agents.policy import Verdict, decide
from kinemill.agents.runner import Report, run_checks
from kinemill.agents.settings import AgentsSettings
from kinemill.agents.state import Memory, OpenFault
from kinemill.agents.toggles import disabled_checks, observe_only
from kinemill.agents.verdict import StoredVerdict, reason_of, write_verdict
from kinemill.agents.xids import parse_xid, rule_for
from kinemill.contracts.checks import CheckClass, CheckContext, CheckResult, CheckStatus
from kinemill.errors import EnvironmentFault

__all__ = ["Outcome", "run_node"]

log = logging.getLogger(__name__)

_FULL = (CheckContext.PERIODIC, CheckContext.BOOT)
"""Contexts whose clean run counts as a pass."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run found and decided."""

    context: Context
    report: Report
    verdict: Verdict
    fault: OpenFault | None
    observed: dict[str, str]


def run_node(
    context: CheckContext,
    settings: AgentsSettings,
    *,
    environ: Mapping[str, str] | None = None,
    names: Iterable[str] = (),
    modules: Mapping[str, CheckModule] | None = None,
    now_s: int | None = None,
) -> Outcome:
    """Check this node and write down what follows.

    The verdict file, the agent's memory and the metrics are written on the way out; where they
    cannot be (full disk, read-only root), that is logged and the decision stands.

    Args:
        context: Who asks; `cli` and `injob` write no verdict.
        settings: Of this node.
        environ: The hook's environment; the process's own by default.
        names: Only these checks.
        modules: Checks to choose from; all by default.
        now_s: Seconds since the epoch; the clock's by default.
    """
    env = os.environ if environ is None else environ
    now = int(time.time()) if now_s is None else now_s
    ctx = context_for(context, settings, env)
    memory = Memory(settings.state_dir / "agents", ctx.boot_id, now)
    known = {"ack.kernel_s": memory.acknowledged_s(), "xid.jobs": memory.xid_jobs()}
    report = run_checks(
        ctx,
        modules=modules,
        names=names,
        disabled=disabled_checks(settings, env),
        cached=memory.cached_facts(),
        known=known,
    )
    writes = os.geteuid() == 0 or settings.state_dir != AgentsSettings().state_dir
    unknowns: dict[str, int] = {}
    if context is CheckContext.PROLOG and writes:
        with _kept("the UNKNOWN streaks"):
            unknowns = memory.count_unknowns(report.results)
    observed = observe_only(settings, now)
    verdict = decide(report.results, context, unknowns=unknowns, observe_only=observed)
    fault = _remember(memory, ctx, report, verdict) if writes else None
    if writes and context not in (CheckContext.CLI, CheckContext.INJOB):
        with _kept("the verdict"):
            write_verdict(settings.run_dir, _stored(ctx, report, verdict, fault, now))
        with _kept("the metrics"):
            for probe in report.unreaped:
                count(settings.state_dir / "agents", "kinemill_check_unreaped_total", {"check": probe})
            for probe, how in report.facts.ended.items():
                if how == "timeout":
                    count(settings.state_dir / "agents", "kinemill_check_timeouts_total", {"check": probe})
            if settings.textfile_dir is not None:
                write_metrics(settings.textfile_dir, settings.state_dir / "agents", report, now)
    return Outcome(ctx, report, verdict, fault, observed)


@contextlib.contextmanager
def _kept(what: str) -> Iterator[None]:
    """Writing down is best effort: the measured decision must not depend on a full disk."""
    try:
        yield
    except EnvironmentFault as exc:
        log.warning("%s could not be written: %s", what, exc)


def _remember(memory: Memory, ctx: Context, report: Report, verdict: Verdict) -> OpenFault | None:
    """Facts to the cache, application XIDs to their job, and the fault opened, confirmed or one pass further."""
    found = memory.open_fault()
    with _kept("the agent's memory"):
        memory.keep_facts(report.facts)
        if ctx.context is CheckContext.EPILOG and ctx.job is not None:
            memory.record_app_xids(ctx.job.job_id, _app_devices(report.facts, ctx, memory.acknowledged_s()))
        if verdict.cause is not None and verdict.letter is not None and ctx.context is not CheckContext.CLI:
            found = memory.open(verdict.cause, verdict.letter)
        elif found is not None and ctx.context in _FULL and _clean(report):
            found = memory.clean_pass(found)
    return found


def _clean(report: Report) -> bool:
    return all(r.status in (CheckStatus.OK, CheckStatus.SKIP, CheckStatus.WARN) for r in report.results)


def _app_devices(facts: Facts, ctx: Context, after_s: float) -> set[str]:
    devices: set[str] = set()
    for item in facts.get("kernel.lines") or []:
        event = parse_xid(float(item[0]), str(item[1]))
        if event is None or event.switch or event.at_s <= after_s:
            continue
        if rule_for(event.number, ctx.settings.checks.xid_actions).action == "app":
            devices.add(event.pci)
    return devices


def _line(result: CheckResult) -> str:
    return f"{result.check} {result.status.value} {result.code} {result.detail}".strip()


def _stored(ctx: Context, report: Report, verdict: Verdict, fault: OpenFault | None, now: int) -> StoredVerdict:
    drains = verdict.drain and fault is not None
    reason = ""
    if drains and fault is not None:
        reason = reason_of(fault.event, fault.check, fault.letter, fault.code, fault.detail)
    notes = {r.code: r.detail for r in verdict.report if r.cls is CheckClass.APP}
    return StoredVerdict(
        event=fault.event if drains and fault is not None else "",
        reason=reason,
        context=ctx.context.value,
        job_id=ctx.job.job_id if ctx.job is not None else None,
        boot_id=ctx.boot_id,
        at_s=now,
        seconds=round(report.seconds, 3),
        findings=tuple(_line(r) for r in verdict.report),
        notes=notes,
    )
