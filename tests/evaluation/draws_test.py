"""Metrics over draws of clients, written out."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from fedpersonal.evaluation.results import ClientResults, over_draws
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


def test_a_draw_is_all_examples_of_its_clients():
    drawn = [np.array(clients) for clients in itertools.combinations([0, 1, 3, 4], 2)]
    exact = [np.sqrt(SQUARES[c].sum() / COUNTS[c].sum()) for c in drawn]
    found = over_draws(RESULTS, drawn)["rmse"]
    assert found == pytest.approx({"mean": np.mean(exact), "sd": np.std(exact)})
    (everybody,) = over_draws(RESULTS, [np.arange(5)]).values()
    assert everybody == pytest.approx({"mean": np.sqrt(SQUARES.sum() / COUNTS.sum()), "sd": 0.0})
