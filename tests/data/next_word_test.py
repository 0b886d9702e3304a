"""Sentences as rows of tokens, worked by hand and against a loop over sentences."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.sentences import TextCorpus
from fedpersonal.data.vocabulary import Vocabulary, next_word_examples
from fedpersonal.errors import UserError


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


def test_wrong_length_is_refused():
    corpus = TextCorpus("n", ["x"], [0, 0], [0], [], [])
    assert next_word_examples(corpus, Vocabulary(["a"], 1)).labels.shape == (0, 20)
    with pytest.raises(UserError, match="sequence_length must be a whole number >= 1, got 0"):
        next_word_examples(corpus, Vocabulary(["a"], 1), sequence_length=0)
