"""Which words are known, and which bucket holds a word that is not."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from fedpersonal.data.sentences import TextCorpus
from fedpersonal.data.vocabulary import Vocabulary, build_vocabulary
from fedpersonal.errors import UserError

# "b a b", "c a", "d d d d d e": the last client is not one of training.
CORPUS = TextCorpus(
    name="made up",
    client_ids=["x", "y", "z"],
    client_offsets=[0, 1, 2, 3],
    sentence_offsets=[0, 3, 5, 11],
    words=[1, 4, 1, 0, 4, 3, 3, 3, 3, 3, 2],
    lexicon=["c", "b", "e", "d", "a"],
)


def _build(client_indices=(0, 1), *, vocab_size=2, num_oov_buckets=1, **options):
    options.update(vocab_size=vocab_size, num_oov_buckets=num_oov_buckets)
    return build_vocabulary(CORPUS, client_indices, **options)


def test_the_most_frequent_words_of_the_training_clients_ties_by_alphabet():
    assert list(_build(vocab_size=3).words) == ["a", "b", "c"]
    assert list(_build(vocab_size=1).words) == ["a"]
    assert list(_build([0], vocab_size=2).words) == ["b", "a"]
    assert list(_build([2, 1, 0], vocab_size=2).words) == ["d", "a"]


def test_the_words_of_most_training_clients():
    """What one client repeats counts once."""
    everyone = _build([2, 0, 1], vocab_size=5, known_words="most_users")
    assert list(everyone.words) == ["a", "b", "c", "d", "e"]
    assert list(_build([0, 1, 2], vocab_size=1).words) == ["d"]
    assert list(_build([0], vocab_size=1, known_words="most_users").words) == ["a"]
    with pytest.raises(ValueError, match="known_words must be one of"):
        _build(known_words="all")


def test_ids():
    vocabulary = Vocabulary(["the", "a"], 10)
    assert (vocabulary.num_known, vocabulary.size) == (5, 15)
    # CRC-32 of "123456789" is 0xCBF43926 = 3421780262, the algorithm's published check value.
    ids = vocabulary.ids(["a", "123456789", "the", "a"])
    assert ids.tolist() == [4, 5 + 2, 3, 4]
    assert ids.dtype == np.int32
    assert vocabulary.ids([]).shape == (0,)
    single = Vocabulary(["the"], 1)
    assert set(single.ids(["été", "東京", "The"])) == {single.size - 1}


def test_every_bucket_is_used():
    vocabulary = Vocabulary([], 7)
    ids = vocabulary.ids([f"word{i}" for i in range(700)])
    counts = np.bincount(ids, minlength=vocabulary.size)
    assert counts[:3].tolist() == [0, 0, 0]
    assert counts[3:].min() > 70 and counts.size == 10


def test_buckets_are_the_same_in_every_process():
    words = ["été", "fedora", "xyzzy"]
    program = (
        "from fedpersonal.data.vocabulary import Vocabulary\n"
        f"print(Vocabulary([], 500).ids({words!r}).tolist())"
    )
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        run = [sys.executable, "-c", program]
        printed = subprocess.run(run, env=environment, capture_output=True, check=True).stdout
        assert printed.decode().strip() == str(Vocabulary([], 500).ids(words).tolist())


def test_coverage():
    vocabulary = _build(vocab_size=2)
    assert vocabulary.coverage(CORPUS, [0]) == 1.0
    assert vocabulary.coverage(CORPUS, [1]) == 0.5
    assert vocabulary.coverage(CORPUS, [2]) == 0.0
    assert vocabulary.coverage(CORPUS, [0, 1, 2]) == pytest.approx(4 / 11)
    assert np.isnan(vocabulary.coverage(CORPUS, []))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"vocab_size": 4},
            "vocab_size=4 is more than the 3 distinct words that the 2 training clients have",
        ),
        ({"vocab_size": 0}, "vocab_size must be a whole number >= 1, got 0"),
        ({"num_oov_buckets": 0}, "num_oov_buckets must be a whole number >= 1, got 0"),
        ({"num_oov_buckets": -1}, "num_oov_buckets must be a whole number >= 1, got -1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        _build(**options)


def test_words_are_distinct():
    with pytest.raises(UserError, match="must be distinct, but 'b' is there 2 times"):
        Vocabulary(["a", "b", "b"], 1)
