"""One run on this node, from reading to verdict: what hooks, timers and `kinemill node check` call."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from kinemill.agents.checks import CheckModule
from kinemill.agents.context import Context, Job, context_for
from kinemill.agents.facts import Facts
from kinemill.agents.lines import logger
from kinemill.agents.metrics import count, write_metrics
from kinemill.agents.policy import Verdict, decide
from kinemill.agents.runner import Report, run_checks
from kinemill.agents.settings import AgentsSettings
from kinemill.agents.state import Memory, OpenFault
from kinemill.agents.toggles import disabled_checks, observe_only
from kinemill.agents.verdict import StoredVerdict, reason_of, write_verdict
from kinemill.agents.xids import XidEvent, parse_xid, pci_key, rule_for
from kinemill.contracts.checks import CheckContext, CheckResult, CheckStatus
from kinemill.errors import EnvironmentFault

__all__ = ["Outcome", "describe", "run_node"]

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
    known = {
        "ack.kernel_s": memory.acknowledged_s(),
        "xid.jobs": memory.xid_jobs(),
        "kernel.kept": memory.kernel_events(),
        "job.lists": memory.lists_seen(),
        "mount.hung": memory.hung_mounts(),
    }
    before = memory.open_fault() if context in _FULL else None
    report = run_checks(
        ctx,
        modules=modules,
        names=names,
        disabled=disabled_checks(settings, env),
        cached=memory.cached_facts(),
        known=known,
        also=(before.check,) if before is not None else (),
    )
    writes = os.geteuid() == 0 or settings.state_dir != AgentsSettings().state_dir
    observed = observe_only(settings, now)
    if not writes:
        return Outcome(ctx, report, decide(report.results, context, observe_only=observed), None, observed)
    unknowns: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        with _kept("the lock"):
            stack.enter_context(memory.turn())
        if context is CheckContext.PROLOG:
            with _kept("the UNKNOWN streaks"):
                unknowns = memory.count_unknowns(report.results)
        verdict = decide(report.results, context, unknowns=unknowns, observe_only=observed)
        fault, notes = _remember(memory, ctx, report, verdict)
        if context not in (CheckContext.CLI, CheckContext.INJOB):
            _write_down(settings, report, _stored(ctx, report, verdict, (fault, notes), now), now)
    return Outcome(ctx, report, verdict, fault, observed)


def _write_down(settings: AgentsSettings, report: Report, verdict: StoredVerdict, now: int) -> None:
    with _kept("the verdict"):
        write_verdict(settings.run_dir, verdict)
    with _kept("the metrics"):
        counted: dict[tuple[str, str], int] = {}
        for probe in report.unreaped:
            counted["kinemill_check_unreaped_total", probe] = 1
        for probe, how in report.facts.ended.items():
            if how == "timeout":
                counted["kinemill_check_timeouts_total", probe] = 1
        folder = settings.state_dir / "agents"
        count(folder, {(name, (("check", probe),)): by for (name, probe), by in counted.items()})
        if settings.textfile_dir is not None:
            write_metrics(settings, report, now)


@contextlib.contextmanager
def _kept(what: str) -> Iterator[None]:
    """Writing down is best effort: the measured decision must not depend on a full disk."""
    try:
        yield
    except EnvironmentFault as exc:
        logger(__name__).warning("%s could not be written: %s", what, exc)


def _remember(
    memory: Memory, ctx: Context, report: Report, verdict: Verdict
) -> tuple[OpenFault | None, dict[str, str]]:
    """What this run leaves behind: facts, XIDs and their job, and the fault opened, confirmed or one pass further."""
    found = memory.open_fault()
    notes: dict[str, str] = {}
    with _kept("the agent's memory"):
        memory.keep_facts(report.facts)
        memory.keep_kernel_events(_xid_lines(report.facts))
        if report.facts.get("mounts.table") is not None:
            memory.keep_hung_mounts(_silent(report.facts, ctx))
        if ctx.context is CheckContext.PROLOG and ctx.job is not None:
            stamp = float(report.facts.get("kernel.last_s") or 0.0)
            memory.job_begins(ctx.job.job_id, stamp, has_list=ctx.job.gpus is not None)
        if ctx.context is CheckContext.EPILOG and ctx.job is not None:
            events = memory.job_ends(ctx.job.job_id, _app_events(report.facts, ctx, ctx.job, memory.acknowledged_s()))
            notes = {f"xid_{e.number}": f"{e.pci}: {rule_for(e.number).text}" for e in events}
            if notes:
                memory.add_note(ctx.job.job_id, _note_text(events))
        if verdict.cause is not None and verdict.letter is not None and ctx.context is not CheckContext.CLI:
            found = memory.open(verdict.cause, verdict.letter)
        elif found is not None and ctx.context in _FULL and _clean(report, verdict):
            found = memory.clean_pass(found)
    return found, notes


def _note_text(events: list[XidEvent]) -> str:
    """One line for the job's owner."""
    seen = sorted({(e.number, e.pci) for e in events})
    what = ", ".join(f"XID {number} ({rule_for(number).text}) on {pci}" for number, pci in seen[:4])
    return f"kinemill: {what}{' and more' if len(seen) > 4 else ''}; usually the program itself"


def _clean(report: Report, verdict: Verdict) -> bool:
    """Whether a round proves the node: nothing unknown, no fault that could drain; one only observed does not count."""
    watched = {r.check for r in verdict.observed}
    return not any(
        r.status is CheckStatus.UNKNOWN or (r.status is CheckStatus.FAIL and r.cls.letter is not None)
        for r in report.results
        if r.check not in watched
    )


def _silent(facts: Facts, ctx: Context) -> list[str]:
    seen = {m: facts.get(f"mount.{m}") for m in ctx.settings.hardware.mounts}
    return [m for m, answer in seen.items() if isinstance(answer, dict) and answer.get("probing")]


def _xid_lines(facts: Facts) -> list[tuple[float, str]]:
    lines = [(float(item[0]), str(item[1])) for item in facts.get("kernel.lines") or []]
    return [(at, text) for at, text in lines if parse_xid(at, text) is not None]


def _app_events(facts: Facts, ctx: Context, job: Job, after_s: float) -> list[XidEvent]:
    """Application XIDs since the acknowledgement on the job's GPUs (all, where Slurm names none to any job)."""
    if job.gpus is None and facts.get("job.lists"):
        return []  # a job without GPUs on a node where Slurm names them
    addresses = {g.slot: g.get("pci") for g in facts.gpus()}
    mine: set[str] | None = None
    if job.gpus is not None and all(i in addresses and addresses[i].error is None for i in job.gpus):
        mine = {pci_key(str(addresses[i].value)) for i in job.gpus}
    found = [e for at, text in _xid_lines(facts) if (e := parse_xid(at, text)) is not None]
    return [
        e
        for e in found
        if not e.switch
        and e.at_s > after_s
        and (mine is None or e.pci in mine)
        and rule_for(e.number, ctx.settings.checks.xid_actions).action == "app"
    ]


def describe(result: CheckResult) -> str:
    """One line for a log: check, status, code, detail."""
    return f"{result.check} {result.status.value} {result.code} {result.detail}".strip()


def _stored(
    ctx: Context, report: Report, verdict: Verdict, left: tuple[OpenFault | None, dict[str, str]], now: int
) -> StoredVerdict:
    fault, notes = left
    opened = fault if verdict.drain else None
    return StoredVerdict(
        event=opened.event if opened else "",
        reason=reason_of(opened) if opened else "",
        context=ctx.context.value,
        job_id=ctx.job.job_id if ctx.job is not None else None,
        boot_id=ctx.boot_id,
        at_s=now,
        seconds=round(report.seconds, 3),
        findings=tuple(describe(r) for r in verdict.report),
        notes=notes,
    )
