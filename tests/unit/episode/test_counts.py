"""Counts by chunk: what runs tell, and what a table tells, is the same."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinemill.episode.counts import Counts, run_lengths
from kinemill.errors import CorruptError


@given(st.data())
def test_runs_tell_what_a_table_tells(data: st.DataObject) -> None:
    # given counts of some topics, regular ones and others
    chunks = data.draw(st.integers(1, 40))
    number = st.integers(0, 3) if data.draw(st.booleans()) else st.integers(0, 1 << 40)
    rows = st.lists(number, min_size=chunks, max_size=chunks) | st.builds(lambda n: [n] * chunks, number)
    table = np.array(data.draw(st.lists(rows, min_size=1, max_size=4)), np.int64)
    # when
    counts = Counts.of(table)
    # then
    assert counts.full == bool((table > 0).all())
    for chunk in range(chunks):
        inside, before = counts.at(chunk)
        assert inside == table[:, chunk].tolist()
        assert before == table[:, :chunk].sum(axis=1).tolist()
    assert [counts.total(i) for i in range(len(table))] == table.sum(axis=1).tolist()
    np.testing.assert_array_equal(counts.table, table)
    np.testing.assert_array_equal(counts.ends, table.cumsum(axis=1))
    assert [tuple(run) for run in counts.runs] == [run_lengths(row) for row in table]


@pytest.mark.parametrize(
    "runs",
    [
        [(5, 3)],
        [(5, 4), (5, 3)],
        [(5, 4, 5)],
        [(5,)],
        [()],
        [(5, 2, 6, -1, 7, 3)],
        [(5, 0, 6, 4)],
        [(-1, 4)],
        [((1 << 40) + 1, 4)],
        [(1, 2, 1 << 41, 2)],
    ],
    ids=str,
)
def test_runs_that_are_no_counts_are_refused(runs: list[tuple[int, ...]]) -> None:
    with pytest.raises(CorruptError, match="do not cover 4 chunks"):
        Counts(runs, 4)
