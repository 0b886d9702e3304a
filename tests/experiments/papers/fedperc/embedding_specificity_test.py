"""Whose embedding it is, by an evaluation whose losses are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from experiments.papers.fedperc.embedding_specificity import (
    compare_embeddings,
    draw_others,
    shares,
)
from fedpersonal.evaluation.client_results import ClientResults

# Two contexts; user 6 has none to compare with, user 7 no embedding.
CONTEXTS = np.array([0, 0, 1, 0, 1, 0, 2, 1])
KNOWN = np.array([True] * 7 + [False])
EMBEDDINGS = np.arange(8.0)[:, np.newaxis]


def evaluate_by(loss, calls=None):
    """Results of 4 tokens a user, whose loss follows from the user and the embedding given."""

    def evaluate(kept):
        known, values = kept
        assert known is KNOWN
        given = values["embedding"][:, 0]
        if calls is not None:
            calls.append(given)
        losses = np.array([loss(user, other) for user, other in enumerate(given)])
        sums = np.stack([4 * losses, np.full(8, 4.0)], axis=1)
        return ClientResults(np.arange(8), np.full(8, 2.0), None, {"loss": sums}, None, ())

    return evaluate


def measured(loss, **options):
    return compare_embeddings(
        evaluate_by(loss), (KNOWN, {"embedding": EMBEDDINGS}), CONTEXTS, **options
    )


def test_others_are_of_the_same_context_and_all_different():
    others = draw_others(KNOWN, CONTEXTS, max_others=20, seed=3)
    assert others.shape == (8, 3)
    for user, row in enumerate(others):
        given = row[row >= 0]
        same = [i for i in range(8) if KNOWN[i] and CONTEXTS[i] == CONTEXTS[user] and i != user]
        assert sorted(given) == (same if KNOWN[user] else [])
    fewer = draw_others(KNOWN, CONTEXTS, max_others=2, seed=3)
    assert fewer.shape == (8, 2) and (fewer[[0, 1, 3, 5]] >= 0).all()
    # Each is as often another's.
    assert np.bincount(fewer[fewer >= 0]).tolist() == [2, 2, 1, 2, 1, 2]
    np.testing.assert_array_equal(fewer, draw_others(KNOWN, CONTEXTS, max_others=2, seed=3))


def test_embeddings_that_fit_their_users_always_win():
    own, others = measured(lambda user, other: 1.0 + abs(user - other))
    # 4 users of the first context, 2 of the second.
    counts = {"num_users": 6, "num_pairs": 4 * 3 + 2}
    assert shares(own, others) == {
        **counts,
        "beats_median": 1.0,
        "beats_mean": 1.0,
        "pairs_won": 1.0,
    }
    assert own[:7].tolist() == [1.0] * 7 and math.isnan(own[7])
    assert sorted(others[0]) == [2.0, 4.0, 6.0]


def test_embeddings_that_say_nothing_of_users_win_half_of_the_pairs():
    found = shares(*measured(lambda user, other: 5.0 + other))
    # Users 0 and 1 of four, and 2 of two, beat the median.
    assert (found["pairs_won"], found["beats_median"]) == (0.5, 0.5)


def test_a_median_is_not_a_mean():
    found = shares(np.array([2.0]), np.array([[1.0, 1.5, 9.0, np.nan]]))
    assert (found["beats_median"], found["beats_mean"]) == (0.0, 1.0)
    assert found["pairs_won"] == pytest.approx(1 / 3)
    # Equal is not better.
    assert shares(np.ones(1), np.ones([1, 2]))["pairs_won"] == 0.0


def test_so_many_evaluations():
    calls = []
    kept = (KNOWN, {"embedding": EMBEDDINGS})
    compare_embeddings(evaluate_by(lambda *_: 1.0, calls), kept, CONTEXTS, max_others=2)
    assert len(calls) == 3
    np.testing.assert_array_equal(calls[0], np.arange(8))


def test_nobody_to_compare_with():
    kept = (KNOWN, {"embedding": EMBEDDINGS})
    found = shares(*compare_embeddings(evaluate_by(lambda *_: 1.0), kept, np.arange(8)))
    assert (found.pop("num_users"), found.pop("num_pairs")) == (0, 0)
    assert all(math.isnan(share) for share in found.values())
