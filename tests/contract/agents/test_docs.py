"""The on-call page says what the code does: every check, every limit, every metric, every runbook."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kinemill.agents.checks import all_checks
from kinemill.agents.skus import Sku
from kinemill.contracts.checks import CheckContext
from kinemill.contracts.metrics import METRICS

DOCS = Path(__file__).resolve().parents[3] / "docs"
PAGE = (DOCS / "node-agents.md").read_text(encoding="utf-8")
ROWS = {m[1]: m[0] for m in re.finditer(r"^\| `([a-z_.]+)` \|.*$", PAGE, re.MULTILINE)}


def test_every_check_has_its_row_and_no_row_is_left_over() -> None:
    assert set(ROWS) == set(all_checks())


def test_every_limit_of_a_sku_is_explained() -> None:
    limits = {f for f in Sku.__slots__ if f not in ("name", "gpu_name", "gpus")}
    assert {limit for limit in limits if f"`{limit}`" not in PAGE} == set()


def test_what_the_prolog_leaves_out_is_said() -> None:
    absent = {n for n, m in all_checks().items() if CheckContext.PROLOG not in m.CHECK.contexts}
    sentence = re.search(r"Not in the prolog.*?shown\.", PAGE, re.DOTALL)
    assert sentence is not None
    assert set(re.findall(r"`([a-z.]+)`", sentence[0])) == absent


@pytest.mark.parametrize(
    "page", [DOCS / "node-agents.md", *sorted((DOCS / "runbooks").glob("*.md"))], ids=lambda p: p.name
)
def test_metrics_links_and_commands_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"\bkinemill_[a-z_]+\b", text)) <= set(METRICS)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).is_file(), target
    from kinemill.agents.cli import node

    for word in re.findall(r"kinemill-node ([a-z]+)\b", text):
        assert word in {*node.commands, "check"}, word


def test_every_alert_of_nodes_has_a_runbook_of_its_own() -> None:
    alerts = dict(re.findall(r"^\| (Kinemill\w+) \|.*\(runbooks/([a-z-]+)\.md\) \|$", PAGE, re.MULTILINE))
    assert alerts
    for alert, runbook in alerts.items():
        assert (DOCS / "runbooks" / f"{runbook}.md").read_text(encoding="utf-8").startswith(f"# {alert}:")
