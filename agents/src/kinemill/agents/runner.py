"""Runs the probes in parallel killable children under one deadline, then judges what they read.

A probe has 2 seconds (a check outside the prolog may declare more) and the whole run 10. A child
that cannot even be killed (a task stuck in the kernel) is left behind and counted; the run goes on.
What a probe emitted before it hung is kept.
"""

from __future__ import annotations

import ctypes
import json
import os
import selectors
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kinemill.agents.checks import CheckModule, all_checks, skip, unknown, worst
from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.agents.probes import load_probe
from kinemill.contracts.checks import CheckResult, CheckStatus

__all__ = ["BUDGET_S", "PROBE_S", "Report", "run_checks", "run_probes"]

BUDGET_S = 10.0
PROBE_S = 2.0
_REAP_S = 1.0
"""For a child that ended or was killed to be gone: a busy node takes its time, one stuck in the kernel never goes."""
_MAX_BYTES = 16 << 20
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Report:
    """One run of checks."""

    results: tuple[CheckResult, ...]
    facts: Facts
    seconds: float
    unreaped: tuple[str, ...] = ()
    """Probes whose child could not be killed."""


@dataclass(slots=True)
class _Child:
    probe: str
    pid: int
    fd: int
    deadline: float
    buffer: bytearray = field(default_factory=bytearray)
    size: int = 0
    started: float = 0.0


def _child_main(ctx: Context, probe: str, fd: int) -> None:
    """Runs in the child; never returns. Exit code 0 means that the probe read all it could."""
    code = 3
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)

        def emit(key: str, value: Any) -> None:
            line = json.dumps([key, value], allow_nan=False, default=str).encode() + b"\n"
            while line:
                line = line[os.write(fd, line) :]

        try:
            load_probe(probe).read(ctx, emit)
            code = 0
        except Exception as exc:  # noqa: BLE001 the child's edge: the parent shows it
            emit(f"probe.{probe}.error", f"{type(exc).__name__}: {exc}"[:300])
    finally:
        os._exit(code)


def _start(ctx: Context, probe: str, now: float, timeout_s: float) -> _Child:
    reader, writer = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _child_main(ctx, probe, writer)
    os.close(writer)
    os.set_blocking(reader, False)
    return _Child(probe, pid, reader, now + timeout_s, started=now)


def _reap(child: _Child, *, kill: bool) -> str:
    """How the child ended: `ok`, `died(...)`, `timeout`, or `unreaped`."""
    if kill:
        for send in (os.killpg, os.kill):
            try:
                send(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    until = time.monotonic() + _REAP_S
    while True:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > until:
            return "unreaped"
        time.sleep(0.002)
    if kill:
        return "timeout"
    code = os.waitstatus_to_exitcode(status)
    return "ok" if code == 0 else f"died({code})"


def run_probes(
    ctx: Context, probes: Iterable[str], *, timeout_s: float = PROBE_S, longer: Mapping[str, float] | None = None
) -> Facts:
    """Run the probes side by side and gather what they emit.

    Args:
        ctx: Handed to each probe.
        probes: Names; duplicates run once.
        timeout_s: After this the children are killed.
        longer: Probes that may take longer, in seconds.

    Returns:
        The facts; `ended` says how each probe ended.
    """
    values: dict[str, Any] = {}
    ended: dict[str, str] = {}
    spent: dict[str, float] = {}
    limits = longer or {}
    started = [_start(ctx, p, time.monotonic(), limits.get(p, timeout_s)) for p in dict.fromkeys(probes)]
    children = {c.fd: c for c in started}
    with selectors.DefaultSelector() as selector:
        for fd in children:
            selector.register(fd, selectors.EVENT_READ)
        while children:
            wait = min(c.deadline for c in children.values()) - time.monotonic()
            for key, _ in selector.select(max(0.0, wait)):
                child = children[key.fd]
                if not _take(child, values):
                    selector.unregister(child.fd)
                    ended[child.probe] = _finish(child, children, spent, kill=child.size > _MAX_BYTES)
            now = time.monotonic()
            for child in [c for c in children.values() if c.deadline <= now]:
                selector.unregister(child.fd)
                ended[child.probe] = _finish(child, children, spent, kill=True)
    return Facts(values, ended, dict.fromkeys(ended, 0.0), spent)


def _take(child: _Child, values: dict[str, Any]) -> bool:
    """Read what is there; False at the end of the stream or past the bound."""
    try:
        block = os.read(child.fd, 1 << 16)
    except BlockingIOError:
        return True
    child.size += len(block)
    if not block or child.size > _MAX_BYTES:
        return False
    child.buffer += block
    *lines, rest = bytes(child.buffer).split(b"\n")
    child.buffer = bytearray(rest)
    for line in lines:
        try:
            name, value = json.loads(line)
        except (ValueError, RecursionError, TypeError):
            continue  # half a line of a killed child
        values[str(name)] = value
    return True


def _finish(child: _Child, children: dict[int, _Child], spent: dict[str, float], *, kill: bool) -> str:
    del children[child.fd]
    os.close(child.fd)
    spent[child.probe] = time.monotonic() - child.started
    return _reap(child, kill=kill)


def run_checks(
    ctx: Context,
    *,
    modules: Mapping[str, CheckModule] | None = None,
    names: Iterable[str] = (),
    disabled: Mapping[str, str] | None = None,
    cached: Facts | None = None,
    known: Mapping[str, Any] | None = None,
    also: Iterable[str] = (),
) -> Report:
    """Run the checks of a context.

    A check that fails or could not measure is measured once more if its probes did not hang and
    time is left: one flaky query condemns nobody.

    Args:
        ctx: Context, settings and job.
        modules: Checks to choose from; all by default.
        names: Only these, whatever their contexts say.
        disabled: Check -> who turned it off; reported as SKIP, never silent.
        cached: Facts of an earlier run in this boot, used where a check's `cache_s` allows their age.
        known: Facts that no probe reads, such as acknowledgements and an XID's job count.
        also: Checks that run whatever their contexts say, beside those of the context.

    Returns:
        A result for every check of the context, in the order of their names.
    """
    begin = time.monotonic()
    every = dict(modules if modules is not None else all_checks())
    wanted = set(names)
    extra = set(also)
    chosen = {
        n: m for n, m in every.items() if (n in wanted if wanted else ctx.context in m.CHECK.contexts or n in extra)
    }
    off = {n: f"turned off by {who}" for n, who in (disabled or {}).items() if n in chosen}
    # What does not concern this node costs no probe.
    aside = {n: why for n, m in chosen.items() if n not in off and (why := _not_here(m, ctx))}
    active = {n: m for n, m in chosen.items() if n not in off and n not in aside}

    fresh_needed, reuse = _plan(active, cached)
    slow = {p: m.CHECK.timeout_s for m in active.values() for p in m.NEEDS if m.CHECK.timeout_s > PROBE_S}
    facts = _merge(run_probes(ctx, fresh_needed, longer=slow), reuse, known)
    results = {n: _judge(m, facts, ctx) for n, m in active.items()}

    again = sorted(
        {
            probe
            for n, r in results.items()
            if r.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN)
            for probe in active[n].NEEDS
            if facts.ended.get(probe) not in ("timeout", "unreaped")
        }
    )
    again = [p for p in again if time.monotonic() - begin + slow.get(p, PROBE_S) < BUDGET_S]
    if again:
        second = run_probes(ctx, again, longer=slow)
        facts = _merge(second, facts, known)
        for n, module in active.items():
            if set(module.NEEDS) & set(again):
                results[n] = _judge(module, facts, ctx)

    for name, who in off.items():
        results[name] = worst(chosen[name].CHECK, [replace(skip(who), code="disabled")])
    for name, why in aside.items():
        results[name] = worst(chosen[name].CHECK, [skip(why)])
    unreaped = tuple(p for p, how in facts.ended.items() if how == "unreaped")
    return Report(tuple(results[n] for n in sorted(results)), facts, time.monotonic() - begin, unreaped)


def _not_here(module: CheckModule, ctx: Context) -> str:
    """Why the check does not concern this node, or an empty text; a module without `not_here` always does."""
    ask = getattr(module, "not_here", None)
    return str(ask(ctx)) if ask is not None else ""


def _plan(active: Mapping[str, CheckModule], cached: Facts | None) -> tuple[list[str], Facts]:
    """Probes that must run now, and the cached facts of the others."""
    tolerance: dict[str, float] = {}
    for module in active.values():
        for probe in module.NEEDS:
            tolerance[probe] = min(tolerance.get(probe, float("inf")), module.CHECK.cache_s)
    reusable = {
        probe
        for probe, most in tolerance.items()
        if cached is not None and cached.ended.get(probe) == "ok" and cached.age_s.get(probe, float("inf")) <= most
    }
    reuse = cached if cached is not None and reusable else Facts()
    kept = Facts(reuse.values, dict.fromkeys(reusable, "ok"), {p: reuse.age_s[p] for p in reusable})
    return [p for p in tolerance if p not in reusable], kept


def _merge(new: Facts, old: Facts, known: Mapping[str, Any] | None) -> Facts:
    return Facts(
        {**old.values, **new.values, **(known or {})},
        {**old.ended, **new.ended},
        {**old.age_s, **new.age_s},
        {**old.spent_s, **new.spent_s},
    )


def _judge(module: CheckModule, facts: Facts, ctx: Context) -> CheckResult:
    """A judge that trips over garbage has not measured: UNKNOWN, with the reason as evidence."""
    try:
        result = module.judge(facts, ctx)
    except Exception as exc:  # noqa: BLE001 hostile facts must not stop the other checks
        why = f"{type(exc).__name__}: {exc}"
        result = worst(
            module.CHECK, [unknown("judge_error", f"could not judge what was read ({why[:40]})")], {"error": why}
        )
    age = max((facts.age_s.get(p, 0.0) for p in module.NEEDS), default=0.0)
    seconds = max((facts.spent_s.get(p, 0.0) for p in module.NEEDS), default=0.0)
    return replace(result, age_s=round(age, 1), seconds=round(seconds, 3))
