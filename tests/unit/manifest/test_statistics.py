"""Statistics gathered part by part, and how they stand in a manifest's metadata."""

from __future__ import annotations

import numpy as np
import pytest

from kinemill.errors import UsageError
from kinemill.manifest.statistics import METADATA_KEY, Gathered, dump_statistics, parse_statistics


def test_parts_add_up_to_the_whole() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal([3.0, -100.0], [0.1, 20.0], (5000, 2))
    one = Gathered()
    for part in np.split(rows, [1, 100, 100, 4000]):
        one.add(part)
    whole = one.result()
    assert whole is not None
    assert whole.count == 5000
    assert whole.mean == pytest.approx(rows.mean(0))
    assert whole.std == pytest.approx(rows.std(0))
    assert whole.min.tolist() == rows.min(0).tolist()
    assert whole.q99 == pytest.approx(np.quantile(rows, 0.99, axis=0), rel=0.05)


def test_no_rows_no_statistics_and_other_columns_are_refused() -> None:
    one = Gathered()
    one.add(np.empty((0, 3)))
    assert one.result() is None
    assert one.columns is None
    one.add(np.zeros((2, 3)))
    with pytest.raises(UsageError, match="columns"):
        one.add(np.zeros((2, 4)))


def test_the_last_digits_that_processors_differ_in_are_not_written() -> None:
    texts = []
    for wobble in (0.0, 1e-15):
        one = Gathered()
        one.add(np.array([[1 / 3 + wobble], [2 / 3]]))
        whole = one.result()
        assert whole is not None
        texts.append(dump_statistics({"/state": whole}))
    assert texts[0] == texts[1]
    back = parse_statistics({METADATA_KEY: texts[0]})
    assert back["/state"].mean.tolist() == [0.5]
