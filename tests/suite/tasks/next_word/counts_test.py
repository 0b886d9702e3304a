"""Predictions by counts of words, against a count by hand and a slow one."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.corpus import generate_corpus
from fedpersonal.suite.readers.sentences import TextCorpus
from fedpersonal.suite.readers.vocabulary import BOS, PAD, Vocabulary, next_word_examples
from fedpersonal.suite.tasks.next_word import counts
from fedpersonal.suite.tasks.next_word.data import split_text
from fedpersonal.suite.tasks.next_word.task import TASK

OPTIONS = {"vocab_size": 30, "sequence_length": 9, "client_batch_size": 3}


def examples(vocabulary, *sentences):
    """Sentences of one client."""
    words = [word for sentence in sentences for word in sentence.split()]
    lexicon = sorted({*words})
    corpus = TextCorpus(
        name="made up",
        client_ids=["x"],
        client_offsets=[0, len(sentences)],
        sentence_offsets=np.cumsum([0, *(len(s.split()) for s in sentences)]),
        words=[lexicon.index(word) for word in words],
        lexicon=lexicon,
    )
    return next_word_examples(corpus, vocabulary, sequence_length=4)


def test_trigrams_by_hand():
    """Three tokens decide where they were seen, else two, else one; known words apart."""
    vocabulary = Vocabulary(["a", "b", "c", "d"], 1)
    a, b, c, d, other = range(3, 8)
    train = examples(vocabulary, "a b c", "a b c", "d b d", "c b d", "d b x", "c a x", "d a x")
    query = examples(vocabulary, "a b", "d b", "b b", "c a", "a a")
    found = counts.predict_by_trigrams(train, query, vocabulary)
    # After "a b" comes c twice. "d b" ties d and x, and "b" c and d, of which d is more frequent.
    assert found.likeliest[:3, 2].tolist() == [c, d, d]
    # After "a" come b twice and an unknown word twice; "c a" has the latter, whatever is known.
    assert found.likeliest[3, 2] == other and found.likeliest_in_vocabulary[3, 2] == b
    assert (found.likeliest_in_vocabulary < vocabulary.num_known).all()
    # Sentences begin with a twice, with c twice and with d thrice.
    assert found.likeliest[:, 0].tolist() == [d] * 5


def test_what_few_have_followed_counts_for_little():
    """After "v" come 5 different words, x twice; y, half of all words, is likelier all the same."""
    vocabulary = Vocabulary(["y", "v", "x", "a", "b", "c"], 1)
    after = ["v x", "v x", "v y", "v a", "v b", "v c"]
    train = examples(vocabulary, *after, *["y y y y"] * 4)
    query = examples(vocabulary, "a v")
    # (1 + 5 * 17 / 34) / 11 against (2 + 5 * 2 / 34) / 11.
    assert counts.predict_by_trigrams(train, query, vocabulary).likeliest[0, 2] == 3


def slow_choice(train, first, second, size, num_known):
    """The same rule, token by token."""

    def context(tokens):
        found = collections.Counter()
        for row, labels in zip(train.features["token"], train.labels):
            history = [PAD, *row]
            for place, label in enumerate(labels):
                seen = history[place + 2 - len(tokens) : place + 2]
                if label != PAD and seen == list(tokens):
                    found[label] += 1
        return found

    probabilities = np.zeros(size)
    for tokens in ((), (second,), (first, second)):
        found = context(tokens)
        own = np.array([found[token] for token in range(size)], float)
        distinct = len(found) if tokens else 0
        if own.sum():
            probabilities = (own + distinct * probabilities) / (own.sum() + distinct)
    return probabilities.argmax(), probabilities[:num_known].argmax()


def test_trigrams_are_those_of_a_slow_count():
    corpus = generate_corpus(num_clients=12, seed=1, min_sentences=4, max_sentences=9)
    data = split_text(corpus, TASK.options(**{**OPTIONS, "num_oov_buckets": 5}))
    vocabulary, query = data.vocabulary, data.test.query
    found = counts.predict_by_trigrams(data.train, query, vocabulary)
    for row in range(0, query.num_examples, 3):
        history = [PAD, *query.features["token"][row]]
        for place in np.flatnonzero(query.labels[row]):
            first, second = history[place : place + 2]
            expected = slow_choice(data.train, first, second, vocabulary.size, vocabulary.num_known)
            assert (
                found.likeliest[row, place],
                found.likeliest_in_vocabulary[row, place],
            ) == expected
    assert query.features["token"][0, 0] == BOS


def test_scores_are_of_the_targets_that_runs_count():
    corpus = generate_corpus(num_clients=40, seed=1)
    data = split_text(corpus, TASK.options(**{**OPTIONS, "num_oov_buckets": 1}))
    query = data.test.query
    found = counts.score_choices(data, "Most frequent word")
    assert found["client"].tolist() == query.client_ids.tolist()
    words = (query.labels > 2) & (query.labels < data.vocabulary.num_known)
    assert found["num_known_words"].sum() == words.sum()
    # The most frequent id is the first word's; ids are by frequency.
    share = np.average(found["accuracy_among_known_after"], weights=found["num_known_words"])
    assert share == pytest.approx((query.labels == 3).sum() / words.sum())
    trigrams = counts.score_choices(data, "Trigram counts")
    for name in ("accuracy_without_oov_or_eos", "accuracy_among_known"):
        assert trigrams[f"{name}_after"].mean() > found[f"{name}_after"].mean() + 0.1
    assert 0 < found["num_after_personal_words"].sum() < words.sum()


def test_clients_that_are_read_when_drawn_are_refused():
    corpus = generate_corpus(num_clients=12, seed=1)
    data = split_text(corpus, TASK.options(**OPTIONS))
    assert isinstance(data.train, ClientDataset)
    object.__setattr__(data, "train", None)
    with pytest.raises(UserError, match="Trigram counts: generated is too large to be counted"):
        counts.score_choices(data, "Trigram counts")
