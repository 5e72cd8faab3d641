"""How results look to a person, and as JSON."""

from __future__ import annotations

import json

import click

from kinemill.agents.checks import all_checks
from kinemill.agents.node import Outcome
from kinemill.contracts.checks import CheckResult, CheckStatus
from kinemill.records import encode

__all__ = ["show_explanation", "show_outcome"]

_COLOUR = {
    CheckStatus.OK: "green",
    CheckStatus.WARN: "yellow",
    CheckStatus.FAIL: "red",
    CheckStatus.UNKNOWN: "magenta",
    CheckStatus.SKIP: "bright_black",
}


def _row(result: CheckResult, observed: dict[str, str]) -> str:
    status = click.style(f"{result.status.value:<8}", fg=_COLOUR[result.status])
    age = f" ({result.age_s:.0f} s old)" if result.age_s else ""
    limit = f" [limit {result.limit}, {result.source}]" if result.limit else ""
    watched = " (observe-only)" if result.check in observed else ""
    return f"{status}{result.check:<18}{result.detail}{limit}{age}{watched}".rstrip()


def show_outcome(outcome: Outcome, *, as_json: bool) -> None:
    """Every result, then what a hook would have done."""
    results = outcome.report.results
    if as_json:
        data = {
            "context": outcome.context.context.value,
            "boot_id": outcome.context.boot_id,
            "seconds": round(outcome.report.seconds, 3),
            "results": encode(results),
            "observe_only": outcome.observed,
        }
        click.echo(json.dumps(data))
        return
    for result in results:
        click.echo(_row(result, outcome.observed))
    bad = sum(r.status in (CheckStatus.FAIL, CheckStatus.UNKNOWN) for r in results)
    click.echo(f"{len(results)} checks in {outcome.report.seconds:.2f} s: {bad or 'none'} failed or unknown")


def show_explanation(outcome: Outcome, name: str, *, as_json: bool) -> None:
    """One check: declaration, result, evidence."""
    module = all_checks()[name]
    (result,) = outcome.report.results
    if as_json:
        click.echo(json.dumps({"check": encode(module.CHECK), "needs": list(module.NEEDS), "result": encode(result)}))
        return
    check = module.CHECK
    click.echo(f"{check.name} (version {check.version}): {check.help}")
    click.echo(f"  {(module.__doc__ or '').strip()}")
    click.echo(f"  runs in: {', '.join(c.value for c in check.contexts)}; reads: {', '.join(module.NEEDS)}")
    click.echo(f"  now: {_row(result, outcome.observed)}")
    for key, value in result.evidence.items():
        click.echo(f"    {key}: {value}")
    for probe in module.NEEDS:
        error = outcome.report.facts.get(f"probe.{probe}.error")
        click.echo(f"  probe {probe}: {outcome.report.facts.how(probe)}{f', {error}' if error else ''}")
