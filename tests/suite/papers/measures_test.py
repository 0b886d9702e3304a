"""What tables measure beside trainings: by hand, against literal numbers."""

from __future__ import annotations

import dataclasses
import math
import types

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from fedpersonal.evaluation.results import ClientResults
from fedpersonal.suite.papers import fedperc_data, fedperc_measures, fedrecon_data, furl, privacy
from fedpersonal.suite.papers.fedperc_measures import compare_embeddings, sample_others, shares
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.tasks.labels.data import (
    USERS_LABEL,
    USERS_RATE,
    label_baselines,
    split_documents,
)
from fedpersonal.suite.tasks.labels.task import TASK

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
    others = sample_others(KNOWN, CONTEXTS, max_others=20, seed=3)
    assert others.shape == (8, 3)
    for user, row in enumerate(others):
        given = row[row >= 0]
        same = [i for i in range(8) if KNOWN[i] and CONTEXTS[i] == CONTEXTS[user] and i != user]
        assert sorted(given) == (same if KNOWN[user] else [])
    fewer = sample_others(KNOWN, CONTEXTS, max_others=2, seed=3)
    assert fewer.shape == (8, 2) and (fewer[[0, 1, 3, 5]] >= 0).all()
    # Each is as often another's.
    assert np.bincount(fewer[fewer >= 0]).tolist() == [2, 2, 1, 2, 1, 2]
    np.testing.assert_array_equal(fewer, sample_others(KNOWN, CONTEXTS, max_others=2, seed=3))


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


def test_case_and_marks_do_not_make_a_line_new(tiny_base, make_dataset):
    said = ["Oh, my God!", "oh my god", "It's 5 - no?", "Oh my Gods."]
    encoded = [tiny_base.tokenizer(text)["input_ids"] for text in said]
    longest = max(map(len, encoded))
    labels = [ids + [-1] * (longest - len(ids)) for ids in encoded]
    dataset = make_dataset([({"context": np.zeros(4)}, np.array(labels, np.int32))])
    assert fedperc_measures.words_of(dataset, tiny_base.tokenizer) == [
        ("oh", "my", "god"),
        ("oh", "my", "god"),
        ("it's", "5", "no"),
        ("oh", "my", "gods"),
    ]


def test_a_million_users_at_the_same_rate_have_the_same_noise_in_the_mean():
    told = {"num_clients": 4_000, "clients_per_round": 500, "noise_multiplier": 0.5, "rounds": 80}
    found = privacy.extrapolated_epsilon(told, delta=1e-6)
    # 0.5 / 500 of the bound on an update is 125 / 125,000 of it.
    oracle = PLDAccountant()
    event = dp_accounting.PoissonSampledDpEvent(0.125, dp_accounting.GaussianDpEvent(125.0))
    oracle.compose(event, 80)
    assert found == pytest.approx(oracle.get_epsilon(1e-6), rel=0.02)


def test_what_the_papers_report():
    """A few figures of each table's corners."""
    paper = fedperc_data.published()
    assert len(paper) == 4 * 4 * 5
    assert paper["reddit", "seen", "fedperc", "1"] == 219.5
    assert paper["reddit", "seen", "meta_learning", "all"] == 241.4
    lines = ("fedperc", "fedperc_frozen", "fedperc_generated", "split_learning", "meta_learning")
    shows = [paper["tv_shows", "unseen", line, "all"] for line in lines]
    assert shows == [52.3, 98.2, 68.6, 96.7, 114.2]
    rows = [[row.published[n] for n in ("1k", "5k", "10k")] for row in fedrecon_data.PAPER_ROWS]
    assert rows[2] == [29.6, 28.1, 27.7] and rows[4] == [30.8, 29.2, 28.8]
    assert [row[2] for row in rows] == [26.7, 26.4, 27.7, 27.9, 28.8, 28.6]


@pytest.fixture(name="data", scope="module")
def _data():
    """A user likes some labels' texts; so users and texts both tell."""
    documents = generate_subreddits(num_users=60, seed=0)
    return split(
        dataclasses.replace(documents, labels=documents.labels < 3, label_names=["0", "1"])
    )


def split(documents):
    return split_documents(documents, TASK.options(text_encoder="hashed_words", word_buckets=500))


def test_a_row_is_a_bag_of_length_1_and_a_user(data):
    query, num_ids = data.test.query, data.vocabulary.size
    matrix = furl.as_matrix(query, num_ids, data.num_users)
    assert matrix.shape == (query.num_examples, num_ids + data.num_users)
    rows = matrix.toarray()
    np.testing.assert_allclose((rows[:, num_ids:] == 1).argmax(axis=1), query.features["user"])
    assert (rows[:, num_ids:].sum(axis=1) == 1).all() and not rows[:, 0].any()
    expected = np.zeros([len(rows), num_ids])
    for row, ids, count in zip(expected, query.features["text"], query.features["num_words"]):
        np.add.at(row, ids[:count], count**-0.5)
    np.testing.assert_allclose(rows[:, :num_ids], expected)


def test_it_knows_more_than_the_users_own_rate(data):
    found = furl.measure_linear(None, types.SimpleNamespace(data=data), None)
    assert found["strength"] in furl.STRENGTHS
    guess = label_baselines(data, data.test)[USERS_RATE].metrics["auc"]
    assert 1.0 > found["test"]["auc"] > guess + 0.05


def test_it_knows_more_than_a_users_most_frequent_label():
    data = split(generate_subreddits(num_users=60, seed=0))
    found = furl.measure_linear(None, types.SimpleNamespace(data=data), None)
    guess = label_baselines(data, data.test)[USERS_LABEL].metrics["accuracy"]
    assert 1.0 > found["test"]["accuracy"] > guess + 0.05


def test_the_strength_is_the_best_for_validation_texts_not_for_the_test(data, monkeypatch):
    """A test set turned round would want none."""
    turned = dataclasses.replace(data.test.query, labels=1 - data.test.query.labels)
    other = dataclasses.replace(data, test=dataclasses.replace(data.test, query=turned))
    monkeypatch.setattr(furl, "STRENGTHS", (1e-6, 1.0))
    straight, around = (
        furl.measure_linear(None, types.SimpleNamespace(data=d), None) for d in (data, other)
    )
    assert straight["strength"] == around["strength"] == 1.0
    assert around["test"]["auc"] == pytest.approx(1 - straight["test"]["auc"])
