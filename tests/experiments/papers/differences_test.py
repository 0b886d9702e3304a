"""Differences of rows: which clients are compared, by which weights, and what a cell says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from experiments.papers.differences import difference
from experiments.papers.result_table import Cell, ResultTable
from fedpersonal.evaluation.client_metric import ClientMetric

RMSE = ClientMetric("rmse_after", to_mean=np.square, finalize=np.sqrt, scale=10.0)


def clients(names, counts, values):
    return pd.DataFrame({"client": [*names], "num_examples": counts, "rmse_after": values})


def test_the_difference_is_that_of_the_cells():
    ours = [clients(["a", "b"], [2, 6], [1.0, 2.0]), clients(["c", "b"], [1, 0], [3.0, np.nan])]
    others = [
        clients(["b", "a", "z"], [6, 2, 9], [1.5, 1.5, 9.0]),
        clients(["b", "c"], [0, 1], [9, 1]),
    ]
    found = difference(ours, others, RMSE)
    expected = [10 * (np.sqrt((2 * 1 + 6 * 4) / 8) - 1.5), 10 * (3.0 - 1.0)]
    assert found.values == pytest.approx(expected)
    assert found.sd == pytest.approx(np.std(expected, ddof=1))
    assert found.interval is None and "within noise" not in found.text(2)  # Three clients.
    many = [[clients("abcdefg", [2] * 7, m + np.arange(7))] for m in (1.0, 2.0)]
    low, high = difference(*many, RMSE).interval
    assert low <= difference(*many, RMSE).mean <= high < 0
    assert RMSE.overall(ours[0]) == pytest.approx(10 * np.sqrt(26 / 8))
    alike = ClientMetric("rmse_after", weights=None)
    assert difference(ours[:1], others[:1], alike).values == (pytest.approx(0.0),)


def test_a_row_that_differs_is_told_from_one_that_does_not():
    random = np.random.default_rng(0)
    names, counts = [f"u{n}" for n in range(300)], random.integers(1, 9, 300)
    common = 1 + random.random(300)
    table = clients(names, counts, common)
    noisy = clients(names, counts, common + random.normal(0, 0.01, 300))
    worse = clients(names, counts, common + 0.1)
    assert "within noise" in difference([noisy] * 2, [table] * 2, RMSE).text(2)
    low, high = difference([worse], [table], RMSE).interval
    assert 0.9 < low <= high < 1.1


def test_rows_on_other_examples_are_refused():
    ours = [clients(["a"], [2], [1.0])]
    for others in ([clients(["a"], [3], [1.0])], [clients(["b"], [2], [1.0])]):
        with pytest.raises(ValueError, match="rows of table 0 are not of the same examples"):
            difference(ours, others, RMSE)


def test_a_cell_says_what_is_within_noise():
    cells = {
        "near": {"d": Cell((0.01, 0.03), interval=(-0.004, 0.05))},
        "far": {"d": Cell((-1.0,), interval=(-1.2, -0.8))},
    }
    page = ResultTable("t", cells, digits=2).markdown()
    assert "+0.02 [-0.00, +0.05] ± 0.01, within noise |" in page
    assert "-1.00 [-1.20, -0.80]  " in page
