"""Vocabularies, and the examples of the next word that they make."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.suite.readers.sentences import TextCorpus
from fedpersonal.suite.readers.vocabulary import Vocabulary, build_vocabulary, next_word_examples

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


def test_coverage():
    vocabulary = _build(vocab_size=2)
    assert vocabulary.coverage(CORPUS, [0]) == 1.0
    assert vocabulary.coverage(CORPUS, [1]) == 0.5
    assert vocabulary.coverage(CORPUS, [2]) == 0.0
    assert vocabulary.coverage(CORPUS, [0, 1, 2]) == pytest.approx(4 / 11)
    assert np.isnan(vocabulary.coverage(CORPUS, []))


def test_worked_by_hand():
    # "b a ?", "a a a a a", "", "a a ? b"; "?" is unknown, in the only bucket.
    corpus = TextCorpus(
        name="made up",
        client_ids=["x", "y"],
        client_offsets=[0, 2, 4],
        sentence_offsets=[0, 3, 8, 8, 12],
        words=[1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 2, 1],
        lexicon=["a", "b", "?"],
    )
    dataset = next_word_examples(corpus, Vocabulary(["a", "b"], 1), sequence_length=4)
    a, b, oov = 3, 4, 5
    assert dataset.client_ids.tolist() == ["x", "y"]
    assert dataset.counts.tolist() == [2, 2]
    token, known, bucket = (
        dataset.features[name].tolist() for name in ("token", "known_token", "oov_token")
    )
    assert token == [[1, b, a, oov], [1, a, a, a], [1, 2, 0, 0], [1, a, a, oov]]
    # A sentence of four words or more has lost its end.
    assert dataset.labels.tolist() == [[b, a, oov, 2], [a, a, a, a], [2, 0, 0, 0], [a, a, oov, b]]
    assert known == [[1, b, a, 0], [1, a, a, a], [1, 2, 0, 0], [1, a, a, 0]]
    assert bucket == [[0] * 4] * 4


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("length", [2, 5, 20])
def test_equals_a_loop(seed, length):
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 12, 60)
    lexicon = [f"w{i}" for i in range(40)]
    corpus = TextCorpus(
        name="made up",
        client_ids=["x", "y", "z"],
        client_offsets=[0, 25, 25, 60],
        sentence_offsets=np.cumsum([0, *counts]),
        words=rng.integers(0, 40, counts.sum()),
        lexicon=lexicon,
    )
    vocabulary = Vocabulary(lexicon[5:20], 4)
    dataset = next_word_examples(corpus, vocabulary, sequence_length=length)
    assert {column.dtype for column in (*dataset.features.values(), dataset.labels)} == {
        np.dtype(np.int32)
    }
    features = dataset.features
    for i, end in enumerate(np.cumsum(counts)):
        words = [lexicon[word] for word in corpus.words[end - counts[i] : end]]
        tokens = [1, *vocabulary.ids(words), 2, *[0] * length][: length + 1]
        assert features["token"][i].tolist() == tokens[:-1]
        assert dataset.labels[i].tolist() == tokens[1:]
    # The two lookups tell every token.
    is_bucket = features["token"] >= vocabulary.num_known
    assert is_bucket.any()
    rebuilt = np.where(is_bucket, features["oov_token"] + 18, features["known_token"])
    np.testing.assert_array_equal(rebuilt, features["token"])
    assert not features["known_token"][is_bucket].any()
    assert not features["oov_token"][~is_bucket].any()
    assert features["oov_token"].max() < 4


def test_without_sentences_there_are_no_examples():
    corpus = TextCorpus("n", ["x"], [0, 0], [0], [], [])
    assert next_word_examples(corpus, Vocabulary(["a"], 1)).labels.shape == (0, 20)
