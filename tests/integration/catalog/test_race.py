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


def shown(result: RaceResult) -> bool:
    """Whether the others lost rows, which is why the rule exists: shown, not assumed."""
    return result.lost["seq"] > 0 and result.lost["time"] > 0


def test_nothing_is_lost_where_naive_watermarks_lose_rows(one: Catalog, tmp_path: Path) -> None:
    for turn in range(5):  # what is lost is a matter of luck, which a machine with other work may not have at once
        folder = tmp_path / str(turn)
        folder.mkdir()
        result = run_race(one.libpq_url, folder, commits=400, writers=6, kills=2, seed=turn + 1)
        check(result, 400)
        if shown(result):
            return
    raise AssertionError("five races, and no naive reader lost a row")


@pytest.mark.full("catalog")
def test_nothing_is_lost_over_ten_thousand_commits(catalog: Catalog, tmp_path: Path) -> None:
    result = run_race(catalog.libpq_url, tmp_path, commits=10_000, kills=12)
    check(result, 10_000)
    assert shown(result)
