"""Baselines of rating prediction without a model: means, and a random order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.evaluation.baselines import Baseline
from fedpersonal.evaluation.means import group_means, shrunken_means
from fedpersonal.suite.tasks.items import rank_by_items

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.suite.tasks.ratings.data import RatingData
    from fedpersonal.suite.tasks.task import EvaluationSet


def predict_baselines(data: RatingData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Predicts the ratings of a part's users by means.

    The overall mean and the items' means are over the training ratings, a user's mean is over its
    support set. Items and users without ratings there get the overall mean.

    Returns:
        Baseline's name to its predictions of the part's query sets, float64 (num_examples,).
    """
    train, support, query = data.train, part.support, part.query
    ratings, counts = np.unique(train.labels, return_counts=True)
    overall = train.labels.mean(dtype=np.float64)
    items = group_means(train.labels - overall, train.features["item"], data.num_items)
    users, tastes = (
        group_means(support.labels - start, support.example_clients, support.num_clients)[
            query.example_clients
        ]
        for start in (overall, overall + items[support.features["item"]])
    )
    item_means = overall + items[query.features["item"]]
    return {
        "mean of all ratings": np.full(query.num_examples, overall),
        "most frequent rating": np.full(query.num_examples, ratings[counts.argmax()]),
        "mean of the item": item_means,
        "mean of the user": overall + users,
        "means of item and user": item_means + tastes,
        "shrunken means of item and user": shrunken_means(train, support, query, data.num_items),
    }


def score_baseline(query: ClientDataset, predictions: np.ndarray) -> Baseline:
    """Returns RMSE, MAE and accuracy of predictions of query sets, as runs report them."""
    errors = np.abs(query.labels - predictions)
    clients, count = query.example_clients, query.num_clients
    sums = {
        name: np.stack([np.bincount(clients, values, count), query.counts], axis=-1)
        for name, values in {"rmse": errors**2, "mae": errors, "accuracy": errors <= 0.5}.items()
    }
    return Baseline.from_sums(sums, {"rmse": np.sqrt})


def rank_by_chance(data: RatingData) -> Baseline:
    """Returns the ranking metrics of a random order of the test users' candidates."""
    ranking = data.test.ranking
    assert ranking
    scores, suffix = np.zeros(data.num_items), data.source.candidates_suffix
    return Baseline.from_clients(rank_by_items(ranking.query, scores, suffix))
