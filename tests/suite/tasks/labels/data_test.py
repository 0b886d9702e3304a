"""Who trains on which texts: nothing that is tested has been trained on."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from fedpersonal.errors import UserError
from fedpersonal.evaluation.baselines import overall_metrics as overall_of
from fedpersonal.evaluation.means import shrunken_means
from fedpersonal.suite.readers.documents import read_documents
from fedpersonal.suite.readers.encoders import HashedWords, build_characters
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.readers.labelled_texts import LabelledTexts
from fedpersonal.suite.tasks.labels.data import (
    LABEL_OF_ALL,
    RATE_OF_ALL,
    SHRUNKEN_RATES,
    USERS_LABEL,
    USERS_RATE,
    label_baselines,
    split_documents,
)
from fedpersonal.suite.tasks.labels.task import TASK


@pytest.fixture(name="documents", scope="module")
def _documents():
    return generate_subreddits(num_users=43, seed=1)


def liked(documents):
    """The same texts, of which a user likes those of the first four labels."""
    labels = documents.labels < 4
    return dataclasses.replace(documents, labels=labels, label_names=["0", "1"])


def split(documents, num_characters=128, **options):
    options = TASK.options(**{"text_encoder": "chars", **options})
    return split_documents(documents, options, num_characters=num_characters)


def _rows(dataset, client) -> collections.Counter:
    """A client's texts and labels, by the client's name."""
    (index,) = np.flatnonzero(dataset.client_ids == client)
    features, labels = dataset.client(index)
    return collections.Counter(zip(map(tuple, features["text"]), labels))


def test_every_text_is_in_one_part(documents):
    data = split(documents, text_length=30, seed=0)
    seen = (data.train, data.validation.query, data.test.query)
    unseen = (data.unseen.support, data.unseen.query)
    assert (data.num_users, unseen[1].num_clients) == (39, 4)
    assert data.validation.seen and data.test.seen and not data.unseen.seen
    assert data.validation.support is data.test.support is data.train
    assert unseen[0].client_ids.tolist() == unseen[1].client_ids.tolist()
    assert not set(data.train.client_ids) & set(unseen[1].client_ids)
    assert set(unseen[0].counts - unseen[1].counts) <= {0, 1}
    assert data.name == "generated_subreddits" and not data.is_binary
    assert data.label_names.tolist() == documents.label_names.tolist()
    for client, first, last in zip(documents.client_ids, documents.offsets, documents.offsets[1:]):
        texts = data.vocabulary.encode(documents.texts[first:last], length=30)
        written = collections.Counter(zip(map(tuple, texts), documents.labels[first:last]))
        parts = seen if client in data.train.client_ids else unseen
        assert sum((_rows(part, client) for part in parts), collections.Counter()) == written
    total = sum(part.counts for part in seen)
    for part in seen[1:]:
        assert part.client_ids.tolist() == data.train.client_ids.tolist()
        assert part.counts.tolist() == np.floor(0.1 * total + 0.5).tolist()


def test_features(documents):
    data = split(documents, seed=0)
    for part in (data.train, data.validation.query, data.test.query, data.unseen.query):
        assert part.features["text"].shape == (part.num_examples, 80)
        assert part.features["text"].dtype == part.features["user"].dtype == np.int32
        assert part.labels.dtype == np.int32
    test = data.test.query
    users = test.features["user"]
    assert (test.client_ids[users] == test.client_ids[test.example_clients]).all()
    assert not data.unseen.query.features["user"].any()
    data = split(liked(documents), seed=0)
    assert data.is_binary and data.test.query.labels.dtype == np.float32
    assert set(data.train.labels) == {0.0, 1.0}


def test_characters_are_of_the_training_texts():
    """Each text has a character of its own, so that it shows who has been counted."""
    num_clients, counts = 20, 10
    texts = [chr(0x4E00 + i) for i in range(num_clients * counts)]
    documents = LabelledTexts(
        name="made up",
        client_ids=[f"c{i}" for i in range(num_clients)],
        offsets=counts * np.arange(num_clients + 1),
        texts=texts,
        labels=np.zeros(len(texts)),
        label_names=["x", "y"],
    )
    data = split(documents, seed=0, num_characters=1000)
    assert len(data.vocabulary.characters) == data.train.num_examples == 18 * 8
    assert (data.train.features["text"][:, 0] > 1).all()
    for part in (data.validation.query, data.test.query, data.unseen.support):
        assert (part.features["text"][:, 0] == 1).all()
    fewer = split(documents, seed=0, num_characters=3)
    assert fewer.vocabulary == build_characters(data.vocabulary.characters, num_characters=3)


def test_splits_follow_the_seed(documents):
    one, same, other = (split(documents, seed=seed) for seed in (0, 0, 1))
    parts = [(data.train, data.test.query, data.unseen.query) for data in (one, same)]
    for first, again in zip(*parts):
        np.testing.assert_array_equal(first.features["text"], again.features["text"])
        np.testing.assert_array_equal(first.labels, again.labels)
    assert set(one.unseen.query.client_ids) != set(other.unseen.query.client_ids)
    everyone, again = (split(documents, unseen_users=0.0, seed=s) for s in (0, 1))
    assert everyone.unseen.query.num_examples == 0
    assert everyone.train.client_ids.tolist() == documents.client_ids.tolist()
    assert not np.array_equal(
        everyone.test.query.features["text"], again.test.query.features["text"]
    )


def test_guesses_against_counting(documents):
    data = split(documents, seed=0)
    overall = collections.Counter(sorted(data.train.labels)).most_common(1)[0][0]
    hits = collections.Counter()
    for user in range(data.num_users):
        own = collections.Counter(sorted(data.train.client(user)[1])).most_common(1)[0][0]
        for label in data.test.query.client(user)[1]:
            hits["users"] += label == own
            hits["overall"] += label == overall
    guesses = label_baselines(data, data.test)
    assert overall_of(guesses) == {
        USERS_LABEL: {"accuracy": hits["users"] / data.test.query.num_examples},
        LABEL_OF_ALL: {"accuracy": hits["overall"] / data.test.query.num_examples},
    }
    labels = data.test.query.client(0)[1]
    assert guesses[LABEL_OF_ALL].clients["accuracy"][0] == np.mean(labels == overall)


@pytest.mark.parametrize("part", ["test", "unseen"])
def test_guesses_of_yes_or_no_against_counting(documents, part):
    data = split(liked(documents), seed=0)
    part = getattr(data, part)
    scores = [part.support.client(user)[1].mean() for user in part.query.example_clients]
    guesses = overall_of(label_baselines(data, part))
    assert guesses[USERS_RATE]["auc"] == pytest.approx(roc_auc_score(part.query.labels, scores))
    assert guesses[RATE_OF_ALL] == {"auc": 0.5}
    same = np.zeros_like(part.query.labels)
    alike = dataclasses.replace(part, query=dataclasses.replace(part.query, labels=same))
    assert overall_of(label_baselines(data, alike))[USERS_RATE] == {}
    assert overall_of(label_baselines(data, alike))[SHRUNKEN_RATES].keys() == {"accuracy"}


def test_texts_that_nobody_else_has_leave_each_users_rate():
    rng = np.random.default_rng(0)
    labels = rng.uniform(size=(100, 30)) < rng.beta(0.5, 0.5, size=(100, 1))
    texts = [f"text {i}" for i in range(labels.size)]
    users, offsets = [f"u{i}" for i in range(100)], np.arange(0, labels.size + 1, 30)
    documents = LabelledTexts(
        "texts", users, offsets, texts, labels.ravel().astype(int), ["0", "1"]
    )
    data = split(documents, seed=0)
    for part in (data.test, data.unseen):
        guesses = overall_of(label_baselines(data, part))
        assert guesses[SHRUNKEN_RATES]["auc"] == pytest.approx(guesses[USERS_RATE]["auc"], abs=0.01)
        own = guesses[USERS_LABEL]["accuracy"]
        assert guesses[SHRUNKEN_RATES]["accuracy"] == pytest.approx(own, abs=0.01)


def test_a_text_that_others_know_is_guessed_by_what_they_say():
    rng = np.random.default_rng(0)
    liked_by, films = rng.uniform(size=20), np.array([rng.permutation(20)[:12] for _ in range(80)])
    labels = rng.uniform(size=films.shape) < liked_by[films]
    documents = LabelledTexts(
        "films",
        [f"u{i}" for i in range(80)],
        np.arange(0, 961, 12),
        [f"film {i}" for i in films.flat],
        labels.ravel().astype(int),
        ["0", "1"],
    )
    data = split(documents, seed=0)
    for part in (data.test, data.unseen):
        parts = (data.train, part.support, part.query)
        texts = np.concatenate([one.features["text"] for one in parts])
        items = np.unique(texts, axis=0, return_inverse=True)[1]
        ends = np.cumsum([one.num_examples for one in parts])
        with_items = [
            dataclasses.replace(one, features={"item": own})
            for one, own in zip(parts, np.split(items, ends[:-1]))
        ]
        rates, query = shrunken_means(*with_items, 20), part.query
        guesses = overall_of(label_baselines(data, part))
        assert guesses[SHRUNKEN_RATES] == {
            "auc": pytest.approx(roc_auc_score(query.labels, rates)),
            "accuracy": pytest.approx(np.mean(query.labels == (rates > 0.5))),
        }
        assert guesses[SHRUNKEN_RATES]["auc"] > guesses[USERS_RATE]["auc"] + 0.1


def test_hashed_words_are_those_of_the_texts(documents):
    data = split(documents, text_encoder="hashed_words", word_buckets=50, seed=0)
    ids, counts = HashedWords(50).encode(documents.texts)
    assert data.vocabulary == HashedWords(50)
    written = collections.Counter(zip(map(tuple, ids), counts, documents.labels))
    found = collections.Counter()
    seen = (data.train, data.validation.query, data.test.query)
    for part in (*seen, data.unseen.support, data.unseen.query):
        text, num_words = part.features["text"], part.features["num_words"]
        assert text.shape == (part.num_examples, ids.shape[1])
        found.update(zip(map(tuple, text), num_words, part.labels))
    assert found == written


def test_too_little_is_refused(documents):
    with pytest.raises(UserError, match="generated_subreddits has 9 users; at least 10"):
        split(generate_subreddits(num_users=9, seed=0), seed=0)
    most = split(generate_subreddits(num_users=10, seed=0), seed=0, unseen_users=0.9)
    assert (most.num_users, most.unseen.query.num_clients) == (1, 9)
    short = generate_subreddits(num_users=20, texts_per_user=(4, 4), seed=0)
    with pytest.raises(UserError, match="no user of generated_subreddits has 5 texts"):
        split(short, seed=0)
    with pytest.raises(UserError, match="num_characters must be a whole number >= 1, got 0"):
        split(documents, num_characters=0)


def test_labels_that_are_all_alike_are_refused(documents):
    all_liked = dataclasses.replace(liked(documents), labels=np.ones_like(documents.labels))
    with pytest.raises(UserError, match="test texts of generated_subreddits all have the same"):
        split(all_liked, seed=0)


def test_guesses_on_reddit_comments(real_data):
    data = split(read_documents(real_data("reddit_comments.jsonl.gz")), seed=0)
    guesses = label_baselines(data, data.test)
    assert guesses[USERS_LABEL].metrics["accuracy"] == pytest.approx(0.587, abs=0.01)
    assert guesses[LABEL_OF_ALL].metrics["accuracy"] == pytest.approx(0.198, abs=0.01)
