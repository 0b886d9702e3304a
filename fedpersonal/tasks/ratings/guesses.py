"""What ratings can be guessed without a model: means, and a random order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedpersonal.evaluation.guess import Guess
from fedpersonal.tasks.items import rank_by_items

if TYPE_CHECKING:
    from fedpersonal.data.clients import ClientDataset
    from fedpersonal.tasks.ratings.data import RatingData
    from fedpersonal.tasks.task import EvaluationSet

# Items and users are fitted in turns; on MovieLens a sixth would change RMSE by less than 1e-4.
_TURNS = 5


def guess_ratings(data: RatingData, part: EvaluationSet) -> dict[str, np.ndarray]:
    """Predicts the ratings of a part's users by means.

    Means of all ratings and of items are of the training ratings; a user's are of its support set.
    Items and users without ratings there get the mean of all.

    Shrunken means are those of an analysis of variance with random effects (empirical Bayes): an
    offset of each item and user, fitted in turns, the nearer to 0 the fewer ratings it has.

    Returns:
        By the guess' name, predictions of the part's query sets, float64 (num_examples,).
    """
    train, support, query = data.train, part.support, part.query
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
    offsets, spread = _fit_offsets(train, overall, data.num_items)
    left = support.labels - overall - offsets[support.features["item"]]
    own = _means(left, support.example_clients, support.num_clients, spread)
    return {
        "mean of all ratings": np.full(query.num_examples, overall),
        "most frequent rating": np.full(query.num_examples, ratings[counts.argmax()]),
        "mean of the item": of_items,
        "mean of the user": overall + users,
        "means of item and user": of_items + tastes,
        "shrunken means of item and user": overall
        + offsets[query.features["item"]]
        + own[query.example_clients],
    }


def score_guess(query: ClientDataset, predictions: np.ndarray) -> Guess:
    """Returns RMSE, MAE and accuracy of predictions of a query set, as a run has them."""
    errors = np.abs(query.labels - predictions)
    clients, count = query.example_clients, query.num_clients
    sums = {
        name: np.stack([np.bincount(clients, values, count), query.counts], axis=-1)
        for name, values in {"rmse": errors**2, "mae": errors, "accuracy": errors <= 0.5}.items()
    }
    return Guess.of_sums(sums, {"rmse": np.sqrt})


def rank_by_chance(data: RatingData) -> Guess:
    """Returns what a random order of the test users' candidates comes to."""
    ranking = data.test.ranking
    assert ranking
    scores, suffix = np.zeros(data.num_items), data.source.candidates_suffix
    return Guess.of_clients(rank_by_items(ranking.query, scores, suffix))


def _fit_offsets(
    train: ClientDataset, overall: float, num_items: int
) -> tuple[np.ndarray, tuple[float, float]]:
    """Returns the items' shrunken offsets from the mean of all, and the users' spread."""
    rated, raters = train.features["item"], train.example_clients
    values, users = train.labels - overall, np.zeros(train.num_clients)
    for _ in range(_TURNS):
        left = values - users[raters]
        items = _means(left, rated, num_items, _spread(left, rated))
        left = values - items[rated]
        spread = _spread(left, raters)
        users = _means(left, raters, train.num_clients, spread)
    return items, spread


def _spread(values: np.ndarray, groups: np.ndarray) -> tuple[float, float]:
    """Returns the variance between groups and that within, 0 where values do not tell."""
    counts, means = np.bincount(groups), _means(values, groups, groups.max() + 1)
    within = ((values - means[groups]) ** 2).sum() / max(len(values) - (counts > 0).sum(), 1)
    counts, means = counts[counts > 0], means[counts > 0]
    among = (counts * (means - values.mean()) ** 2).sum() / max(len(counts) - 1, 1)
    size = (len(values) - (counts**2).sum() / len(values)) / max(len(counts) - 1, 1)
    return max((among - within) / size, 0.0) if size else 0.0, within


def _means(
    values: np.ndarray,
    groups: np.ndarray,
    num_groups: int,
    spread: tuple[float, float] = (1.0, 0.0),
) -> np.ndarray:
    """Returns the expected mean of each group, plain without variance within; 0 without values."""
    between, within = spread
    sums, counts = (np.bincount(groups, w, num_groups) for w in (values, None))
    noise = counts * between + within
    return np.divide(sums * between, noise, out=np.zeros(num_groups), where=noise > 0)
