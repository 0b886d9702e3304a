"""Which round of a run validated best, and how far the last one is from it."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from fedpersonal.runs.validation import find_best_round

NONE = np.nan
CASES = [
    # Columns, metrics asked for, the metric, best and last round with their values.
    ({"eval/loss": [0.9, 0.7, 0.8]}, (), ("loss", 2, 0.7, 3, 0.8)),
    ({"eval/accuracy": [0.5, 0.7, 0.6]}, (), ("accuracy", 2, 0.7, 3, 0.6)),
    ({"eval/loss": [3, 2, 1], "eval/rmse": [1, 2, 3]}, ("rmse",), ("rmse", 1, 1, 3, 3)),
    ({"eval/loss": [NONE, 2.0, NONE, 1.0, NONE]}, (), ("loss", 4, 1, 4, 1)),
    ({"eval/loss": [1.0, 1.0, 2.0]}, (), ("loss", 1, 1, 3, 2)),
    ({"eval/loss": [1.0, np.inf]}, (), ("loss", 1, 1, 2, np.inf)),
    ({"eval/loss": [NONE, 2.0]}, (), None),
    ({"eval/num_examples": [3.0, 2.0]}, (), None),
    ({"train/loss": [3.0, 2.0]}, (), None),
]


@pytest.mark.parametrize(("columns", "asked", "expected"), CASES)
def test_the_best_round_and_the_last(columns, asked, expected):
    length = len(next(iter(columns.values())))
    rounds = pd.DataFrame({"round": range(1, length + 1), "seconds": 0.1, **columns})
    found = find_best_round(rounds, asked)
    assert (found and dataclasses.astuple(found)) == expected


def test_a_sentence_says_how_much_worse_the_last_round_is():
    rounds = pd.DataFrame({"round": [1, 2, 3], "seconds": 0.1, "eval/rmse": [1.0, 0.8, 0.95]})
    assert find_best_round(rounds).sentence("stars") == (
        "validation rmse was best in round 2 (0.8000); in the last round, 3, it is 0.1500 stars "
        "worse"
    )
    assert find_best_round(rounds[:2]).sentence().endswith("in round 2 (0.8000), the last one")
