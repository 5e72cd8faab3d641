"""Every cell of the status x class x context table."""

from __future__ import annotations

import itertools

import pytest

from kinemill.agents.policy import TABLE, Decision, cell, decide
from kinemill.contracts.checks import CheckClass, CheckContext, CheckResult, CheckStatus

S, K, C = CheckStatus, CheckClass, CheckContext

# Letters: r refuse, d drain, q requeue, s say; "-" nothing. One row a status and class.
# Columns:            prolog epilog periodic boot injob cli
EXPECTED = {
    (S.OK, None): ("-", "-", "-", "-", "-", "-"),
    (S.SKIP, None): ("-", "-", "-", "-", "-", "-"),
    (S.WARN, None): ("s", "s", "s", "s", "s", "s"),
    (S.UNKNOWN, None): ("s", "s", "s", "s", "s", "rs"),
    (S.FAIL, K.TRANSIENT): ("rdqs", "rds", "ds", "ds", "rs", "rs"),
    (S.FAIL, K.HARD): ("rdqs", "rds", "ds", "ds", "rs", "rs"),
    (S.FAIL, K.CONFIG): ("s", "s", "s", "s", "s", "rs"),
    (S.FAIL, K.APP): ("s", "s", "s", "s", "s", "rs"),
}
COLUMNS = (C.PROLOG, C.EPILOG, C.PERIODIC, C.BOOT, C.INJOB, C.CLI)


def letters(decision: Decision) -> str:
    found = "".join(
        letter
        for letter, on in (
            ("r", decision.refuse),
            ("d", decision.drain),
            ("q", decision.requeue),
            ("s", decision.report),
        )
        if on
    )
    return found or "-"


@pytest.mark.parametrize(("status", "cls", "context"), list(itertools.product(S, K, C)))
def test_each_cell(status: CheckStatus, cls: CheckClass, context: CheckContext) -> None:
    row = EXPECTED.get((status, cls)) or EXPECTED[status, None]
    result = CheckResult("a", status, cls)
    assert letters(cell(result, context)) == row[COLUMNS.index(context)]
    assert (status, cls, context) in TABLE


@pytest.mark.parametrize("context", list(C))
def test_the_second_unknown_in_a_row_refuses_in_the_prolog_only(context: CheckContext) -> None:
    result = CheckResult("a", S.UNKNOWN)
    assert letters(cell(result, context, 1)) == EXPECTED[S.UNKNOWN, None][COLUMNS.index(context)]
    expected = "rdqs" if context is C.PROLOG else EXPECTED[S.UNKNOWN, None][COLUMNS.index(context)]
    assert letters(cell(result, context, 2)) == expected


def test_the_hard_fault_names_the_drain() -> None:
    results = [CheckResult("a", S.FAIL, K.TRANSIENT), CheckResult("z", S.FAIL, K.HARD), CheckResult("m", S.OK)]
    verdict = decide(results, C.PROLOG)
    assert verdict.cause is not None
    assert (verdict.cause.check, verdict.letter, verdict.refuse) == ("z", "H", True)


def test_an_unknown_that_refuses_is_transient_whatever_class_it_carries() -> None:
    verdict = decide([CheckResult("a", S.UNKNOWN, K.HARD)], C.PROLOG, unknowns={"a": 2})
    assert (verdict.letter, verdict.refuse, verdict.drain) == ("T", True, True)


def test_observe_only_reports_and_changes_nothing() -> None:
    results = [CheckResult("a", S.FAIL, K.HARD), CheckResult("b", S.WARN)]
    verdict = decide(results, C.PROLOG, observe_only=["a"])
    assert (verdict.refuse, verdict.drain, verdict.cause) == (False, False, None)
    assert [r.check for r in verdict.observed] == ["a"]
    assert {r.check for r in verdict.report} == {"a", "b"}
