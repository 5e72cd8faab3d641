"""Pytest plugin: layers from folders, deadlines, long suites kept apart, and skips that explain themselves.

``tests/<layer>/<area>/test_*.py``: the folder is the layer, and the layer is the marker. Nobody writes it by hand.

====================  ==========================================================  ==========
layer                 what it may touch                                           deadline
====================  ==========================================================  ==========
unit                  nothing outside the process                                 300 s
contract              recorded and live answers, the repository's own rules       900 s
integration           real servers and processes on this machine                  900 s
cluster               nodes in containers, real Slurm (root)                      1800 s
gpu                   an NVIDIA GPU                                               600 s
====================  ==========================================================  ==========

Tests of properties (hypothesis) meet the same examples in every run: what a search finds is found on purpose.

A test marked ``full("<area>")`` belongs to a long suite: it runs only under ``-m full`` (all of them), or ``-m full
--area NAME`` (``make full-NAME``). A test marked ``slow`` runs only when the expression after ``-m`` names ``slow``.

A skip says why and what would run it: ``skip("no NVIDIA GPU", run="make test on a machine with one")``. A skip that
does not say what would run it is a failure.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

__all__ = ["LAYERS", "skip", "skip_if"]

LAYERS: Final = ("unit", "contract", "integration", "cluster", "gpu")
DEADLINE_S: Final = {"unit": 300, "contract": 900, "integration": 900, "cluster": 1800, "gpu": 600, "full": 10_800}
RUN_HINT: Final = "to run it:"
TESTS: Final = Path(__file__).resolve().parents[1]

_left_out = pytest.StashKey["dict[str, Counter[str]]"]()


# ---- what tests import


def skip(why: str, *, run: str) -> NoReturn:
    """Skip the running test.

    Args:
        why: what is missing, e.g. ``"no NVIDIA GPU"``.
        run: what would run the test, e.g. ``"make test as root"``.
    """
    pytest.skip(f"{why}; {RUN_HINT} {run}")


def skip_if(condition: bool, why: str, *, run: str) -> pytest.MarkDecorator:
    """Mark a test or a module as skipped if ``condition`` holds; arguments as in ``skip``."""
    return pytest.mark.skipif(condition, reason=f"{why}; {RUN_HINT} {run}")


# ---- options and markers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--area``."""
    parser.getgroup("kinemill").addoption(
        "--area",
        action="append",
        default=[],
        metavar="NAME",
        help="with -m full: only the long suite of this area (may be given more than once)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Declare the markers."""
    for layer in LAYERS:
        config.addinivalue_line("markers", f"{layer}: set from the folder tests/{layer}")
    config.addinivalue_line("markers", "slow: not part of make test; runs under -m slow")
    config.addinivalue_line("markers", "full(area): the long suite of an area; runs under -m full --area AREA")
    _settle_hypothesis(config)
    left_out: dict[str, Counter[str]] = {"full": Counter(), "slow": Counter()}
    config.stash[_left_out] = left_out
    if config.getoption("--area") and not _names(config, "full"):
        raise pytest.UsageError("--area chooses among the long suites: add -m full (or use make full-AREA)")


def _settle_hypothesis(config: pytest.Config) -> None:
    """Give every run the same examples and no clock; a search for new ones is asked for by its profile's name.

    ``fixed`` is what ``make test`` runs. ``search`` tries ten times as many random ones:
    ``make test PYTEST_ARGS='-m unit --hypothesis-profile=search'``.
    """
    from hypothesis import HealthCheck, settings

    unhurried = {"deadline": None, "suppress_health_check": list(HealthCheck), "print_blob": True}
    settings.register_profile("fixed", derandomize=True, database=None, **unhurried)
    settings.register_profile("search", max_examples=1000, **unhurried)
    if not config.getoption("hypothesis_profile", None):
        settings.load_profile("fixed")


def _names(config: pytest.Config, marker: str) -> bool:
    return re.search(rf"\b{marker}\b", str(config.getoption("markexpr"))) is not None


# ---- collection: layer, deadline, long suites apart, cheap layers first


def layer_of(path: Path) -> str | None:
    """Return the layer of a test file, or None if its folder is none."""
    try:
        top = path.resolve().relative_to(TESTS).parts[0]
    except ValueError:
        return None
    return top if top in LAYERS else None


def full_areas(item: pytest.Item) -> list[str]:
    """Return the areas whose long suite holds this test; empty for an ordinary test.

    Raises:
        pytest.UsageError: the marker names no area.
    """
    areas: list[str] = []
    for mark in item.iter_markers("full"):
        if not mark.args or not all(isinstance(name, str) for name in mark.args):
            raise pytest.UsageError(f'{item.nodeid}: write the area into the marker: @pytest.mark.full("cache")')
        areas += mark.args
    return areas


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark by folder, give deadlines, leave long suites out, put cheap layers first."""
    wanted = set(config.getoption("--area"))
    known: set[str] = set()
    keep: list[pytest.Item] = []
    drop: list[pytest.Item] = []
    for item in items:
        layer = layer_of(item.path)
        if layer is None:
            raise pytest.UsageError(f"{item.nodeid}: a test lives in tests/<{'|'.join(LAYERS)}>/<area>/test_*.py")
        item.add_marker(layer)
        areas = full_areas(item)
        known.update(areas)
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DEADLINE_S["full" if areas else layer]))
        if areas and not _names(config, "full"):
            config.stash[_left_out]["full"].update(areas)
            drop.append(item)
        elif item.get_closest_marker("slow") is not None and not areas and not _names(config, "slow"):
            config.stash[_left_out]["slow"].update(["slow"])
            drop.append(item)
        elif wanted and not wanted & set(areas):
            drop.append(item)
        else:
            keep.append(item)
    if unknown := wanted - known:
        raise pytest.UsageError(
            f"no long suite of area {', '.join(sorted(unknown))}; there is: {', '.join(sorted(known)) or 'none'}"
        )
    if drop:
        config.hook.pytest_deselected(items=drop)
    items[:] = sorted(keep, key=lambda item: LAYERS.index(str(layer_of(item.path))))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip the gpu layer where the kernel shows no GPU."""
    if item.get_closest_marker("gpu") is not None and not Path("/dev/nvidia0").exists():
        skip("no NVIDIA GPU (/dev/nvidia0 is not there)", run="make test on a machine with an NVIDIA GPU")


# ---- skips that explain themselves


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip that does not say what would run it into a failure."""
    report = yield
    report.user_properties.append(("layer", str(layer_of(item.path))))
    _judge_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module skipped while it is collected."""
    report = yield
    _judge_skip(report)
    return report


def skip_reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the reason of a skipped report, without pytest's prefix."""
    text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    return text.removeprefix("Skipped: ")


def _judge_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail") or RUN_HINT in skip_reason(report):
        return
    reason = skip_reason(report)
    report.outcome = "failed"
    report.longrepr = (
        f"{report.nodeid}: skipped ({reason}) without saying what would run it: "
        f'use support.layers.skip("why", run="what"), or put "{RUN_HINT} ..." into the reason'
    )


# ---- the summary


def pytest_terminal_summary(terminalreporter: TerminalReporter, config: pytest.Config) -> None:
    """Print seconds by layer, what was skipped and why, and what stayed outside this run."""
    tr = terminalreporter
    seconds: dict[str, float] = defaultdict(float)
    tests: Counter[str] = Counter()
    for reports in tr.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                layer = dict(report.user_properties).get("layer")
                seconds[str(layer)] += report.duration
                tests[str(layer)] += report.when == "call" or (report.when == "setup" and not report.passed)
    if tests:
        tr.section("layers")
        for layer in LAYERS:
            if tests[layer]:
                tr.line(f"{layer:<12} {tests[layer]:>5} tests {seconds[layer]:>8.1f} s")
    reasons = Counter(
        skip_reason(report)
        for report in tr.stats.get("skipped", [])
        if isinstance(report, pytest.TestReport | pytest.CollectReport)
    )
    if reasons:
        tr.section("skipped, and what would run it")
        for reason, count in sorted(reasons.items()):
            tr.line(f"{count:>4} x {reason}")
    full = config.stash[_left_out]["full"]
    slow = config.stash[_left_out]["slow"]["slow"]
    if full or slow:
        tr.section("not in this run")
        for area, count in sorted(full.items()):
            tr.line(f"{count:>4} long tests of {area}; {RUN_HINT} make full-{area}")
        if slow:
            tr.line(f"{slow:>4} slow tests; {RUN_HINT} make test PYTEST_ARGS='-m slow'")
