"""Who knows nothing has the level of chance, whatever users have rated; never more."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.readers.ratings import Ratings
from fedpersonal.suite.tasks.items import query_metrics, ranked_means
from fedpersonal.suite.tasks.ranking.data import rank_by_chance
from fedpersonal.suite.tasks.ranking.task import TASK as INTERACTIONS
from fedpersonal.suite.tasks.ratings.task import TASK as RATINGS

NUM_USERS, DRAWS = 30, 1500


def make_ratings(num_items, seed):
    """Ratings of users of whom some have rated all items, almost all, or few."""
    random = np.random.default_rng(seed)
    counts = [num_items, num_items - 1, num_items - 9, num_items - 10, num_items - 11, 3]
    counts = np.append(random.choice(counts, NUM_USERS - 1), 3)
    items = [random.permutation(num_items)[:count] for count in counts]
    total = int(counts.sum())
    return Ratings(
        name="made",
        users=np.repeat(np.arange(NUM_USERS, dtype=np.int32), counts),
        items=np.concatenate(items).astype(np.int32),
        ratings=random.integers(1, 6, total).astype(np.float32),
        times=np.arange(total),
        user_ids=np.array([f"u{n}" for n in range(NUM_USERS)], object),
        item_ids=np.array([f"i{n}" for n in range(num_items)], object),
        report={},
    )


def ranked_parts(ratings, seed):
    """Yields what each task ranks, who has an item held out, and the suffix of its metrics."""
    for evaluate_on in ("unseen", "seen"):
        options = RATINGS.options(evaluate_on=evaluate_on, seed=seed, max_ratings_per_user=20)
        data = RATINGS.split(ratings, options)
        for part in (data.validation, data.test):
            held_out = part.query.counts > 0 if part.seen else np.ones(part.query.num_clients, bool)
            yield part.ranking.query, held_out, data.source.candidates_suffix
    data = INTERACTIONS.split(Interactions(**vars(ratings)), INTERACTIONS.options(seed=seed))
    for part in (data.validation, data.test):
        yield part.query, np.ones(NUM_USERS, bool), data.source.candidates_suffix


@pytest.mark.parametrize(("num_items", "seed"), [(15, 0), (15, 1), (40, 2), (140, 3), (140, 4)])
def test_random_scores_have_the_level_of_chance_in_any_table(num_items, seed):
    ratings, random = make_ratings(num_items, seed), np.random.default_rng(seed)
    num_unrated = num_items - np.bincount(ratings.users)
    unrated = dict(zip(ratings.user_ids, num_unrated))
    ranked = 1 + np.minimum(num_unrated[num_unrated >= 10], 99)
    for query, held_out, suffix in ranked_parts(ratings, seed):
        left = np.array([unrated[client] for client in query.client_ids]) * held_out
        assert query.counts.tolist() == np.where(left < 10, 0, 1 + np.minimum(left, 99)).tolist()
        assert str(ranked.min()) in suffix or ranked.min() == 100 and not suffix
        shape = (query.num_clients, max(query.counts.max(), 1))
        chance = query_metrics(np.zeros(shape), query.counts, suffix)
        draws = [query_metrics(random.random(shape), query.counts, suffix) for _ in range(DRAWS)]
        for name, values in chance.items():
            np.testing.assert_array_equal(np.isnan(values), left < 10)
            assert not (values >= 1).any()
            mean = np.mean([found[name] for found in draws], 0)
            np.testing.assert_allclose(mean, values, atol=0.07, err_msg=name)


def test_chance_of_all_items_is_that_of_random_scores():
    source = Interactions(**vars(make_ratings(15, 0)))
    data = INTERACTIONS.split(source, INTERACTIONS.options())
    chance = rank_by_chance(data, data.test)
    ranked = data.test.query.counts > 0
    candidates = 15 - data.train.positives.counts[ranked]
    assert 0 < ranked.sum() < NUM_USERS
    for name, values in chance.items():
        np.testing.assert_array_equal(np.isnan(values), ~ranked)
        if name == "hr@10_all":
            np.testing.assert_allclose(values[ranked], 10 / candidates)
    assert ranked_means(chance)["hr@10_all"] == pytest.approx(np.mean(10 / candidates))
