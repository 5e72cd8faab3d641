"""What a result means for the node: one table, status by context (and by class where it fails).

UNKNOWN refuses a job only on the second time in a row of the same check in the prolog; everywhere
else it is reported. Config faults never drain, an application's fault is its own job's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kinemill.contracts.checks import CheckClass, CheckContext, CheckResult, CheckStatus

__all__ = ["TABLE", "UNKNOWN_LIMIT", "Decision", "Verdict", "cell", "decide"]

UNKNOWN_LIMIT = 2
"""UNKNOWNs in a row of one check in the prolog that refuse a job."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one result."""

    refuse: bool = False
    """The hook fails: Slurm does not run (or, in the epilog, has run) the job here."""
    drain: bool = False
    requeue: bool = False
    """The job goes back to the queue; Slurm does so when a prolog fails."""
    report: bool = False
    """A person should see it."""


_C, _S, _K = CheckContext, CheckStatus, CheckClass
_NOTHING = Decision()
_SAY = Decision(report=True)
_REFUSE = Decision(refuse=True, drain=True, requeue=True, report=True)
_AFTER = Decision(refuse=True, drain=True, report=True)
_DRAIN = Decision(drain=True, report=True)
_FINDING = Decision(refuse=True, report=True)

_FAIL: dict[CheckContext, dict[CheckClass, Decision]] = {
    _C.PROLOG: {_K.TRANSIENT: _REFUSE, _K.HARD: _REFUSE, _K.CONFIG: _SAY, _K.APP: _SAY},
    _C.EPILOG: {_K.TRANSIENT: _AFTER, _K.HARD: _AFTER, _K.CONFIG: _SAY, _K.APP: _SAY},
    _C.PERIODIC: {_K.TRANSIENT: _DRAIN, _K.HARD: _DRAIN, _K.CONFIG: _SAY, _K.APP: _SAY},
    _C.BOOT: {_K.TRANSIENT: _DRAIN, _K.HARD: _DRAIN, _K.CONFIG: _SAY, _K.APP: _SAY},
    _C.INJOB: {_K.TRANSIENT: _FINDING, _K.HARD: _FINDING, _K.CONFIG: _SAY, _K.APP: _SAY},
    _C.CLI: {_K.TRANSIENT: _FINDING, _K.HARD: _FINDING, _K.CONFIG: _FINDING, _K.APP: _FINDING},
}

TABLE: dict[tuple[CheckStatus, CheckClass, CheckContext], Decision] = {
    **{(_S.OK, k, c): _NOTHING for k in _K for c in _C},
    **{(_S.SKIP, k, c): _NOTHING for k in _K for c in _C},
    **{(_S.WARN, k, c): _SAY for k in _K for c in _C},
    **{(_S.UNKNOWN, k, c): (_FINDING if c is _C.CLI else _SAY) for k in _K for c in _C},
    **{(_S.FAIL, k, c): _FAIL[c][k] for k in _K for c in _C},
}
"""Every cell; the prolog's second UNKNOWN in a row is the one rule beside it."""


def cell(result: CheckResult, context: CheckContext, unknowns_in_a_row: int = 0) -> Decision:
    """The decision for one result.

    Args:
        result: What the check answered.
        context: Who asked.
        unknowns_in_a_row: UNKNOWNs of this check in the prolog, this one included.
    """
    if result.status is _S.UNKNOWN and context is _C.PROLOG and unknowns_in_a_row >= UNKNOWN_LIMIT:
        return _REFUSE
    return TABLE[result.status, result.cls, context]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a whole run means."""

    refuse: bool
    drain: bool
    letter: str | None
    """`H` where any draining result is hard, else `T`; None without a drain."""
    cause: CheckResult | None
    """The result that names the drain."""
    report: tuple[CheckResult, ...]
    observed: tuple[CheckResult, ...]
    """Results that would have drained, had their check not been turned to observe-only."""


def decide(
    results: Iterable[CheckResult],
    context: CheckContext,
    *,
    unknowns: Mapping[str, int] | None = None,
    observe_only: Iterable[str] = (),
) -> Verdict:
    """Put the decisions of all results together; the hardest result names the drain.

    Args:
        results: Of one run.
        context: Who asked.
        unknowns: Check -> UNKNOWNs in a row in the prolog, this run included.
        observe_only: Checks whose findings are reported and change nothing.
    """
    watched = set(observe_only)
    causes: list[CheckResult] = []
    report: list[CheckResult] = []
    observed: list[CheckResult] = []
    refuse = False
    for result in results:
        decision = cell(result, context, (unknowns or {}).get(result.check, 0))
        if decision.report:
            report.append(result)
        if result.check in watched:
            if decision.drain or decision.refuse:
                observed.append(result)
            continue
        refuse = refuse or decision.refuse
        if decision.drain:
            causes.append(result)
    causes.sort(key=lambda r: (r.cls is not _K.HARD, r.status is not _S.FAIL, r.check))
    cause = causes[0] if causes else None
    letter = None if cause is None else ("H" if cause.status is _S.FAIL and cause.cls is _K.HARD else "T")
    return Verdict(refuse, cause is not None, letter, cause, tuple(report), tuple(observed))
