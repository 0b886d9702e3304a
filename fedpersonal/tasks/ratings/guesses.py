"""What ratings are guessed without any training, on the test examples of a split."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.tasks.ratings.data import RatingData


def guess_ratings(data: RatingData) -> dict[str, np.ndarray]:
    """Predicts the test users' ratings by means.

    Means of all ratings and of items are of the training ratings; a user's are of its support set.
    Items and users without ratings there get the mean of all.

    Returns:
        By the guess' name, predictions of `data.test.query`, float64 (num_examples,).
    """
    train, support, query = data.train, data.test.support, data.test.query
    ratings, counts = np.unique(train.labels, return_counts=True)
    overall = train.labels.mean(dtype=np.float64)
    items = _means(train.labels - overall, train.features["item"], data.num_items)
    users, tastes = (
        _means(support.labels - start, support.example_clients, support.num_clients)[
            query.example_clients
        ]
        for start in (overall, overall + items[support.features["item"]])
    )
    of_items = overall + items[query.features["item"]]
    return {
        "mean of all ratings": np.full(query.num_examples, overall),
        "most frequent rating": np.full(query.num_examples, ratings[counts.argmax()]),
        "mean of the item": of_items,
        "mean of the user": overall + users,
        "means of item and user": of_items + tastes,
    }


def score_guess(query: ClientDataset, predictions: np.ndarray) -> dict[str, np.ndarray]:
    """Returns columns as those of `ClientResults.per_client`, a row a client: RMSE and accuracy."""
    errors = np.abs(query.labels - predictions)
    means = {
        "rmse_after": np.sqrt(_means(errors**2, query.example_clients, query.num_clients)),
        "accuracy_after": _means(errors <= 0.5, query.example_clients, query.num_clients),
    }
    return {"client": query.client_ids, "num_examples": query.counts, **means}


def _means(values: np.ndarray, groups: np.ndarray, num_groups: int) -> np.ndarray:
    """Returns the mean of each group, 0 for those without values."""
    sums = np.bincount(groups, values, minlength=num_groups)
    return sums / np.maximum(np.bincount(groups, minlength=num_groups), 1)
