"""Tests that made-up ratings have the traits that are promised."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.errors import UserError


@pytest.mark.parametrize(("num_users", "num_items"), [(300, 100_000), (300, 400), (20, 20)])
def test_traits(num_users, num_items):
    ratings = generate_ratings(num_users=num_users, num_items=num_items, seed=1)
    assert (ratings.user_ids.size, ratings.item_ids.size) == (num_users, num_items)
    counts = np.bincount(ratings.users, minlength=num_users)
    assert counts.min() >= 20 and counts.max() <= min(200, num_items)
    pairs = ratings.users.astype(np.int64) * num_items + ratings.items
    assert np.unique(pairs).size == ratings.ratings.size
    assert (np.diff(ratings.users) >= 0).all()
    assert ratings.items.min() >= 0 and ratings.items.max() < num_items
    assert set(ratings.ratings) == {1, 2, 3, 4, 5}
    assert (np.diff(ratings.times)[np.diff(ratings.users) == 0] > 0).all()
    dtypes = [a.dtype for a in (ratings.users, ratings.items, ratings.ratings, ratings.times)]
    assert dtypes == [np.int32, np.int32, np.float32, np.int64]


def test_tails_are_long():
    ratings = generate_ratings(num_users=500, num_items=2000, seed=2)
    by_item = np.sort(np.bincount(ratings.items, minlength=2000))[::-1]
    assert by_item[:200].sum() > 0.4 * ratings.ratings.size
    counts = np.bincount(ratings.users)
    assert np.median(counts) < counts.mean()


def test_taste_is_of_low_rank():
    ratings = generate_ratings(num_users=60, num_items=60, seed=3, rank=2, min_ratings=60)
    table = np.zeros((60, 60))
    table[ratings.users, ratings.items] = ratings.ratings
    table -= table.mean(axis=0)
    table -= table.mean(axis=1, keepdims=True)
    shares = np.linalg.svd(table, compute_uv=False) ** 2
    # Two factors stand out from the noise of rounding and chance.
    assert shares[1] > 2 * shares[2]
    assert shares[2] < 2 * shares[3]


def test_seeded():
    first, again, other = (
        generate_ratings(num_users=9, num_items=50, seed=seed).ratings for seed in (0, 0, 1)
    )
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_users=0), "num_users must be a whole number >= 1, got 0"),
        (dict(rank=0), "rank .* got 0"),
        (dict(min_ratings=30, max_ratings=29), "max_ratings must be a whole number >= 30, got 29"),
        (dict(min_ratings=51), "min_ratings=51 are more than num_items=50"),
        (dict(seed=-1), "seed .* got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        generate_ratings(**{"num_users": 9, "num_items": 50, "seed": 0, **options})
