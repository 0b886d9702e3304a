"""Who knows the users predicts generated labels well, and who only reads does not."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.generated.corpus import TOPICS
from fedpersonal.data.generated.documents import generate_subreddits
from fedpersonal.data.labelled_texts import most_frequent_labels
from fedpersonal.errors import UserError

_TOPIC = {
    word: number
    for number, parts in enumerate(TOPICS.values())
    for part in parts
    for word in part.split()
}


def _topics(documents) -> list[list[int]]:
    """The topics that each text is about, once for each word that tells one."""
    words = (text.rstrip(".").split() for text in documents.texts)
    return [[_TOPIC[word] for word in text if word in _TOPIC] for text in words]


def _counts(documents) -> np.ndarray:
    """How often each user has each label: (num_clients, num_labels)."""
    counts = np.zeros((documents.num_clients, documents.num_labels), int)
    np.add.at(counts, (documents.to_client_dataset().example_clients, documents.labels), 1)
    return counts


@pytest.mark.parametrize("num_labels", [3, 8])
def test_knowing_the_user_helps_to_find_the_subreddit(num_labels):
    documents = generate_subreddits(num_labels=num_labels, seed=1)
    assert documents.label_names.tolist() == list(TOPICS)[:num_labels]
    assert set(documents.labels) == set(range(num_labels))
    clients = documents.to_client_dataset().example_clients
    counts = _counts(documents)
    reader = knower = 0.0
    for label, client, topics in zip(documents.labels, clients, _topics(documents)):
        assert len(topics) == 3 and label in topics and len(set(topics)) in (1, 3)
        reader += topics.count(label) / 3
        # Without this text itself, which nobody who predicts it can have counted.
        seen = counts[client] - (np.arange(num_labels) == label)
        knower += label == max(topics, key=seen.__getitem__)
    assert reader / documents.texts.size == pytest.approx(0.3 + 0.7 / 3, abs=0.02)
    assert knower / documents.texts.size > 0.8
    guesses = most_frequent_labels(documents.to_client_dataset())[clients]
    assert np.mean(guesses == documents.labels) > 0.5


def test_sizes_and_seeds():
    documents, again, other = (
        generate_subreddits(num_users=50, texts_per_user=(2, 5), seed=seed) for seed in (3, 3, 4)
    )
    assert set(np.diff(documents.offsets)) == {2, 3, 4, 5}
    assert documents.num_clients == 50
    assert documents.texts.tolist() == again.texts.tolist() != other.texts.tolist()
    assert documents.labels.tolist() == again.labels.tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_users": 0}, "num_users must be a whole number >= 1, got 0"),
        ({"texts_per_user": (0, 5)}, r"texts_per_user\[0\] must be a whole number >= 1, got 0"),
        ({"texts_per_user": (5, 4)}, r"texts_per_user\[1\] must be a whole number >= 5, got 4"),
        ({"texts_per_user": 20}, r"texts_per_user must be \(least, most\), got 20"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        generate_subreddits(**{"seed": 0, **options})


@pytest.mark.parametrize(
    ("num_labels", "message"),
    [(2, "num_labels must be a whole number >= 3, got 2"), (9, "num_labels must be at most 8")],
)
def test_wrong_numbers_of_labels_are_refused(num_labels, message):
    with pytest.raises(UserError, match=message):
        generate_subreddits(num_labels=num_labels, seed=0)
