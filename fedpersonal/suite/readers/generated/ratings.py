"""Synthetic ratings that resemble real ones, for tests and benchmarks."""

from __future__ import annotations

import numpy as np

from fedpersonal.data.sources import check_count, check_counts
from fedpersonal.errors import UserError
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.readers.ratings import Ratings


def generate_ratings(
    *,
    num_users: int,
    num_items: int,
    seed: int,
    rank: int = 4,
    min_ratings: int = 20,
    max_ratings: int = 200,
) -> Ratings:
    """Generates ratings of 1 to 5 stars by a low-rank model with user and item biases.

    Few items and few users have many ratings, and most have few. Items without ratings are still
    counted, so that tables have `num_items` rows.

    Args:
        num_users: The number of users, >= 1.
        num_items: The number of items, >= 1.
        seed: >= 0.
        rank: The number of factors of users' tastes, >= 1.
        min_ratings: The minimum number of ratings of a user, >= 1.
        max_ratings: The maximum number, >= `min_ratings`; reduced to `num_items`.

    Returns:
        The ratings, named "synthetic"; times are seconds, distinct for each user.
    """
    check_counts(1, num_users=num_users, num_items=num_items, rank=rank, min_ratings=min_ratings)
    check_count("max_ratings", max_ratings, minimum=min_ratings)
    if min_ratings > num_items:
        raise UserError(f"min_ratings={min_ratings} are more than num_items={num_items}")
    rng = generator(Purpose.GENERATED_RATINGS, check_count("seed", seed))

    max_ratings = min(max_ratings, num_items)
    # Uniform in the logarithm: as many users between 20 and 40 ratings as between 40 and 80.
    spread = rng.uniform(np.log(min_ratings), np.log(max_ratings + 1), num_users)
    counts = np.clip(np.exp(spread).astype(np.int64), min_ratings, max_ratings)
    popularity = 1.0 / (10.0 + rng.permutation(num_items))
    cumulative = np.cumsum(popularity / popularity.sum())
    items = np.concatenate([_sample_items(rng, cumulative, count) for count in counts])
    users = np.repeat(np.arange(num_users), counts)

    user_factors = rng.normal(size=(num_users, rank))
    item_factors = rng.normal(size=(num_items, rank)) * (0.7 / np.sqrt(rank))
    scores = (
        3.5
        + rng.normal(scale=0.4, size=num_users)[users]
        + rng.normal(scale=0.4, size=num_items)[items]
        + np.einsum("nr,nr->n", user_factors[users], item_factors[items])
        + rng.normal(scale=0.5, size=users.size)
    )
    starts = np.cumsum(counts) - counts
    return Ratings(
        name="synthetic",
        users=users.astype(np.int32),
        items=items.astype(np.int32),
        ratings=np.clip(np.rint(scores), 1, 5).astype(np.float32),
        times=60 * (np.arange(users.size) - starts[users]),
        user_ids=np.array([f"user{i}" for i in range(num_users)], object),
        item_ids=np.array([f"item{i}" for i in range(num_items)], object),
    )


def _sample_items(rng: np.random.Generator, cumulative: np.ndarray, count: int) -> np.ndarray:
    """Samples `count` distinct items, (count,), in proportion to popularity."""
    num_items = cumulative.size
    if 4 * count > num_items:
        # Rejection would discard most samples: sample from all items at once, which are few.
        weights = np.diff(cumulative, prepend=0.0)
        return np.argsort(rng.exponential(size=num_items) / weights)[:count]
    items = np.empty(0, np.int64)
    while items.size < count:
        sampled = np.searchsorted(cumulative, rng.random(2 * count), side="right")
        items = np.concatenate([items, np.minimum(sampled, num_items - 1)])
        _, first = np.unique(items, return_index=True)
        items = items[np.sort(first)]
    return items[:count]
