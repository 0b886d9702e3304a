"""The central linear model: what it sees, and that it finds what is there."""

from __future__ import annotations

import dataclasses
import types

import numpy as np
import pytest

from experiments.papers.furl import linear_model
from fedpersonal.data.generated.documents import generate_subreddits
from fedpersonal.tasks.documents.data import USERS_LABEL, USERS_RATE, guess_labels, split_documents
from fedpersonal.tasks.documents.task import TASK


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
    matrix = linear_model.as_matrix(query, num_ids, data.num_users)
    assert matrix.shape == (query.num_examples, num_ids + data.num_users)
    rows = matrix.toarray()
    np.testing.assert_allclose((rows[:, num_ids:] == 1).argmax(axis=1), query.features["user"])
    assert (rows[:, num_ids:].sum(axis=1) == 1).all() and not rows[:, 0].any()
    expected = np.zeros([len(rows), num_ids])
    for row, ids, count in zip(expected, query.features["text"], query.features["num_words"]):
        np.add.at(row, ids[:count], count**-0.5)
    np.testing.assert_allclose(rows[:, :num_ids], expected)


def test_it_knows_more_than_the_users_own_rate(data):
    found = linear_model.measure_linear(None, types.SimpleNamespace(data=data), None)
    assert found["strength"] in linear_model.STRENGTHS
    guess = guess_labels(data, data.test)[USERS_RATE].metrics["auc"]
    assert 1.0 > found["test"]["auc"] > guess + 0.05


def test_it_knows_more_than_a_users_most_frequent_label():
    data = split(generate_subreddits(num_users=60, seed=0))
    found = linear_model.measure_linear(None, types.SimpleNamespace(data=data), None)
    guess = guess_labels(data, data.test)[USERS_LABEL].metrics["accuracy"]
    assert 1.0 > found["test"]["accuracy"] > guess + 0.05


def test_the_strength_is_the_best_for_validation_texts_not_for_the_test(data, monkeypatch):
    """A test set turned round would want none."""
    turned = dataclasses.replace(data.test.query, labels=1 - data.test.query.labels)
    other = dataclasses.replace(data, test=dataclasses.replace(data.test, query=turned))
    monkeypatch.setattr(linear_model, "STRENGTHS", (1e-6, 1.0))
    straight, around = (
        linear_model.measure_linear(None, types.SimpleNamespace(data=d), None)
        for d in (data, other)
    )
    assert straight["strength"] == around["strength"] == 1.0
    assert around["test"]["auc"] == pytest.approx(1 - straight["test"]["auc"])
