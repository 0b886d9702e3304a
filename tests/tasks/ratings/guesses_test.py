"""Guesses without training, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.data.ratings import Ratings
from fedpersonal.tasks.ratings.data import (
    RankedSet,
    RatingData,
    guess_ratings,
    score_guess,
    split_ratings,
)
from fedpersonal.tasks.ratings.task import TASK


def test_by_hand(make_dataset):
    def ratings(rows):
        tables = [np.array(own, np.float64).reshape(-1, 2) for own in rows]
        return make_dataset([({"item": t[:, 0].astype(np.int32)}, t[:, 1]) for t in tables])

    train = ratings([[(0, 5.0), (1, 1.0)], [(0, 4.0), (1, 1.0), (2, 4.0)]])
    support = ratings([[(0, 4.0), (1, 2.0)], []])
    query = ratings([[(2, 4.0), (3, 1.0)], [(0, 4.0)]])
    test = RankedSet(support, query)
    nothing = np.empty(0)
    source = Ratings("made up", *[nothing] * 3, None, user_ids=np.arange(2), item_ids=np.arange(4))
    found = guess_ratings(RatingData("made up", train, test, test, source), test)
    expected = {
        "mean of all ratings": [3, 3, 3],
        "most frequent rating": [1, 1, 1],  # As frequent as 4, and less.
        "mean of the item": [4, 3, 4.5],  # Nobody has rated the item 3.
        "mean of the user": [3, 3, 3],
        # The first user gives -0.5 and +1 to the items' means of 4.5 and 1.
        "means of item and user": [4.25, 3.25, 4.5],
    }
    assert {name: guess.tolist() for name, guess in found.items()} == expected
    scores = score_guess(query, found["means of item and user"])
    assert scores.clients["accuracy"].tolist() == [0.5, 1.0]
    assert scores.clients["rmse"] == pytest.approx([np.sqrt((0.25**2 + 2.25**2) / 2), 0.5])
    assert scores.metrics["rmse"] == pytest.approx(np.sqrt((0.25**2 + 2.25**2 + 0.5**2) / 3))
    assert scores.metrics["mae"] == pytest.approx((0.25 + 2.25 + 0.5) / 3)


@pytest.mark.parametrize("evaluate_on", ["seen", "unseen"])
def test_no_guess_knows_what_it_guesses(evaluate_on):
    ratings = generate_ratings(num_users=30, num_items=40, max_ratings=40, seed=0)
    data = split_ratings(ratings, TASK.options(evaluate_on=evaluate_on))
    before = guess_ratings(data, data.test)
    data.test.query.labels[:] = 1000.0
    for name, guess in guess_ratings(data, data.test).items():
        np.testing.assert_array_equal(guess, before[name])
