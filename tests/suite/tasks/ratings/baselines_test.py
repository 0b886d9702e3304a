"""Guesses of ratings: by hand, as the theory has them, and blind to what they guess."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.ratings import Ratings
from fedpersonal.suite.tasks.ratings.baselines import predict_baselines, score_baseline
from fedpersonal.suite.tasks.ratings.data import RankedSet, RatingData, split_ratings
from fedpersonal.suite.tasks.ratings.task import TASK

SHRUNKEN = "shrunken means of item and user"


def rating_data(train, test, num_users, num_items):
    """What is tested on, of users and items of these numbers."""
    nothing, ids = np.empty(0), [np.arange(number) for number in (num_users, num_items)]
    source = Ratings("made up", *[nothing] * 3, None, user_ids=ids[0], item_ids=ids[1])
    return RatingData("made up", train, test, test, source)


def test_by_hand(make_dataset):
    def ratings(rows):
        tables = [np.array(own, np.float64).reshape(-1, 2) for own in rows]
        return make_dataset([({"item": t[:, 0].astype(np.int32)}, t[:, 1]) for t in tables])

    train = ratings([[(0, 5.0), (1, 1.0)], [(0, 4.0), (1, 1.0), (2, 4.0)]])
    support = ratings([[(0, 4.0), (1, 2.0)], []])
    query = ratings([[(2, 4.0), (3, 1.0)], [(0, 4.0)]])
    test = RankedSet(support, query)
    found = predict_baselines(rating_data(train, test, 2, 4), test)
    expected = {
        "mean of all ratings": [3, 3, 3],
        "most frequent rating": [1, 1, 1],  # As frequent as 4, and less.
        "mean of the item": [4, 3, 4.5],  # Nobody has rated the item 3.
        "mean of the user": [3, 3, 3],
        # The first user gives -0.5 and +1 to the items' means of 4.5 and 1.
        "means of item and user": [4.25, 3.25, 4.5],
    }
    found.pop(SHRUNKEN)
    assert {name: guess.tolist() for name, guess in found.items()} == expected
    scores = score_baseline(query, found["means of item and user"])
    assert scores.clients["accuracy"].tolist() == [0.5, 1.0]
    assert scores.clients["rmse"] == pytest.approx([np.sqrt((0.25**2 + 2.25**2) / 2), 0.5])
    assert scores.metrics["rmse"] == pytest.approx(np.sqrt((0.25**2 + 2.25**2 + 0.5**2) / 3))
    assert scores.metrics["mae"] == pytest.approx((0.25 + 2.25 + 0.5) / 3)


@pytest.mark.parametrize("evaluate_on", ["seen", "unseen"])
def test_no_guess_knows_what_it_guesses(evaluate_on):
    ratings = generate_ratings(num_users=30, num_items=40, max_ratings=40, seed=0)
    data = split_ratings(ratings, TASK.options(evaluate_on=evaluate_on))
    before = predict_baselines(data, data.test)
    data.test.query.labels[:] = 1000.0
    for name, guess in predict_baselines(data, data.test).items():
        np.testing.assert_array_equal(guess, before[name])


def random_effects(make_dataset, seed, users, items=200, each=4):
    """Users with `each` ratings of a mean, an offset of the item and one of the user, and noise."""
    rng = np.random.default_rng(seed)
    of_items, of_users = rng.normal(0, 0.6, items), rng.normal(0, 0.4, users)

    def part():
        rated = rng.integers(0, items, (users, each))
        ratings = 3 + of_items[rated] + of_users[:, None] + rng.normal(0, 0.9, (users, each))
        return make_dataset(
            [({"item": r.astype(np.int32)}, y) for r, y in zip(rated, ratings.astype(np.float32))]
        )

    support, query = part(), part()
    return rating_data(support, RankedSet(support, query), users, items), of_items


def test_shrunken_means_are_nearly_the_best_there_are(make_dataset):
    data, of_items = random_effects(make_dataset, 0, users=3000)
    support, query = data.test.support, data.test.query
    found = predict_baselines(data, data.test)
    left = support.labels - 3 - of_items[support.features["item"]]
    of_four = np.bincount(support.example_clients, left) / 4
    # The best linear guess, which knows the items and how much users differ.
    best = 3 + of_items[query.features["item"]]
    best = best + (of_four * 0.16 / (0.16 + 0.81 / 4))[query.example_clients]
    rmse = {name: score_baseline(query, guess).metrics["rmse"] for name, guess in found.items()}
    assert rmse[SHRUNKEN] < score_baseline(query, best).metrics["rmse"] + 0.01
    assert rmse[SHRUNKEN] < rmse["means of item and user"] - 0.02


def test_ratings_that_say_nothing_of_users_or_items(make_dataset):
    same = make_dataset([({"item": np.array([n], np.int32)}, np.array([4.0])) for n in range(3)])
    test = RankedSet(same, same)
    found = predict_baselines(rating_data(same, test, 3, 3), test)
    assert all((guess == 4).all() for guess in found.values())
