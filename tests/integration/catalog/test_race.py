"""The reason for the outbox's rule: a watermark on a sequence or a time loses rows, the snapshot's does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinemill.pipelines.catalog import Catalog
from support.catalog_race import RaceResult, run_race


def check(result: RaceResult, commits: int) -> None:
    assert result.commits >= commits
    assert result.killed > 0
    assert (result.lost["safe"], result.duplicated["safe"], result.phantom["safe"]) == (0, 0, 0)
    # Shown, not assumed: what the others lose is why the rule exists.
    assert result.lost["seq"] > 0
    assert result.lost["time"] > 0


def test_nothing_is_lost_where_naive_watermarks_lose_rows(one: Catalog, tmp_path: Path) -> None:
    check(run_race(one.libpq_url, tmp_path, commits=400, writers=6, kills=2), 400)


@pytest.mark.full("catalog")
def test_nothing_is_lost_over_ten_thousand_commits(catalog: Catalog, tmp_path: Path) -> None:
    check(run_race(catalog.libpq_url, tmp_path, commits=10_000, kills=12), 10_000)
