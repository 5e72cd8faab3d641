"""The checks: one file each, found by being here. A check declares itself and judges facts; it reads nothing.

A module has `CHECK` (its declaration), `NEEDS` (the probes whose facts it judges) and
`judge(facts, ctx) -> CheckResult`; it may have `not_here(ctx) -> str`, which says why the check does
not concern this node, so that its probes need not run. Adding a check is one file here and one test.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from kinemill.agents.context import Context
from kinemill.agents.facts import Facts
from kinemill.contracts.checks import Check, CheckClass, CheckResult, CheckStatus, FixAction

__all__ = [
    "CheckModule",
    "Finding",
    "all_checks",
    "fail",
    "ok",
    "skip",
    "unknown",
    "warn",
    "worst",
]

_ORDER = (CheckStatus.FAIL, CheckStatus.UNKNOWN, CheckStatus.WARN, CheckStatus.OK, CheckStatus.SKIP)


class CheckModule(Protocol):
    """A module in this package."""

    CHECK: Check
    NEEDS: tuple[str, ...]

    def judge(self, facts: Facts, ctx: Context) -> CheckResult:
        """Pure: the same facts and context give the same result."""
        ...


def all_checks() -> dict[str, CheckModule]:
    """Check name -> module, in the order of their names.

    Raises:
        RuntimeError: Two files declare one name.
    """
    found: dict[str, CheckModule] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):
            continue
        module: Any = importlib.import_module(f"{__name__}.{info.name}")
        if module.CHECK.name in found:
            raise RuntimeError(f"two checks are called {module.CHECK.name}")
        found[module.CHECK.name] = module
    return dict(sorted(found.items()))


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing a check found, before the worst of them becomes the result."""

    status: CheckStatus
    code: str = ""
    detail: str = ""
    cls: CheckClass = CheckClass.TRANSIENT
    action: FixAction = FixAction.NONE
    limit: str = ""
    source: str = ""


def ok(detail: str = "") -> Finding:
    """Measured, and as it should be."""
    return Finding(CheckStatus.OK, detail=detail)


def skip(detail: str) -> Finding:
    """Does not apply here, and why."""
    return Finding(CheckStatus.SKIP, "not_applicable", detail)


def unknown(code: str, detail: str) -> Finding:
    """Could not be measured: neither fine nor broken."""
    return Finding(CheckStatus.UNKNOWN, code, detail)


def warn(code: str, detail: str, **more: Any) -> Finding:
    """Worth a look; the node keeps working."""
    return Finding(CheckStatus.WARN, code, detail, **more)


def fail(code: str, detail: str, **more: Any) -> Finding:
    """Broken; `cls` says whether a human is needed."""
    return Finding(CheckStatus.FAIL, code, detail, **more)


def worst(check: Check, findings: Iterable[Finding], evidence: dict[str, str] | None = None) -> CheckResult:
    """The result of a check: its worst finding, with the count of others of the same status.

    A hard failure outranks a transient one. No finding at all is UNKNOWN: a check that looked at
    nothing has not passed.
    """
    every = list(findings) or [unknown("nothing_measured", "the check had nothing to look at")]

    def rank(f: Finding) -> tuple[int, int]:
        return (_ORDER.index(f.status), 0 if f.cls is CheckClass.HARD else 1)

    first = min(every, key=rank)
    same = sum(f.status is first.status for f in every)
    detail = first.detail
    if same > 1 and first.status in (CheckStatus.FAIL, CheckStatus.WARN, CheckStatus.UNKNOWN):
        detail = f"{detail[:66]} (+{same - 1} more)"
    return CheckResult(
        check=check.name,
        status=first.status,
        cls=first.cls,
        action=first.action,
        code=first.code,
        detail=detail[:80],
        evidence=evidence or {},
        limit=first.limit,
        source=first.source,
    )
