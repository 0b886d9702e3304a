"""Metrics over draws of clients, against all draws that there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpersonal.evaluation.draws import over_draws
from fedpersonal.evaluation.evaluate import ClientResults
from fedpersonal.model.metrics import RMSE

COUNTS = np.array([1.0, 4.0, 0.0, 2.0, 3.0])
SQUARES = np.array([9.0, 1.0, 0.0, 0.5, 30.0])
RESULTS = ClientResults(
    np.array(list("abcde"), object),
    COUNTS,
    None,
    {"rmse": np.stack([SQUARES, COUNTS], -1)},
    None,
    (RMSE,),
)


def test_draws_are_of_as_many_clients_that_have_examples():
    drawn = [list(chosen) for chosen in itertools.combinations([0, 1, 3, 4], 2)]
    exact = [np.sqrt(SQUARES[c].sum() / COUNTS[c].sum()) for c in drawn]
    found = over_draws(RESULTS, draws=4_000, clients=2, seed=0)["rmse"]
    assert found == pytest.approx({"mean": np.mean(exact), "sd": np.std(exact)}, rel=0.04)
    assert over_draws(RESULTS, draws=4_000, clients=2, seed=0)["rmse"] == found
    assert over_draws(RESULTS, draws=4_000, clients=2, seed=1)["rmse"] != found
    everybody = np.sqrt(SQUARES.sum() / COUNTS.sum())
    of_all = over_draws(RESULTS, draws=3, clients=50, seed=0)["rmse"]
    assert of_all == pytest.approx({"mean": everybody, "sd": 0.0})
