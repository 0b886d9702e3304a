"""Who knows a client's words predicts what follows them, and who does not cannot."""

from __future__ import annotations

import collections

import numpy as np
import pytest

from fedpersonal.data.generated.corpus import FUNCTION_WORDS, TOPICS, base_words, generate_corpus
from fedpersonal.data.vocabulary import build_vocabulary
from fedpersonal.errors import UserError

_TOPIC = {w: topic for topic, parts in TOPICS.items() for part in parts for w in part.split()}
_FAVOURITES = {w for _, verbs, endings in TOPICS.values() for w in (verbs, endings)}


@pytest.fixture(scope="module")
def corpus():
    return generate_corpus(seed=3)


def _uses(corpus) -> list[list[tuple[str, str]]]:
    """For each client, its own words in order, each with the verb or ending after it."""
    base = set(base_words())
    clients = []
    for i in range(corpus.num_clients):
        words = corpus.lexicon[corpus.subset([i]).words]
        pairs = zip(words, words[1:])
        clients.append([(word, after) for word, after in pairs if word not in base])
    return clients


def test_sizes(corpus):
    assert corpus.num_clients == 200
    assert 40 == np.diff(corpus.client_offsets).min() < np.diff(corpus.client_offsets).max() == 80
    assert len(set(base_words())) == len(base_words()) == 168
    assert len(set(corpus.lexicon)) == 1168
    assert (
        5 <= np.diff(corpus.sentence_offsets).min() <= np.diff(corpus.sentence_offsets).max() <= 8
    )


def test_the_shared_words_are_the_frequent_ones(corpus):
    vocabulary = build_vocabulary(corpus, range(200), vocab_size=168, num_oov_buckets=500)
    assert set(vocabulary.words) == set(base_words())


def test_a_clients_word_has_one_topic_and_comes_again(corpus):
    seen_before = total = 0
    for uses in _uses(corpus):
        topics = collections.defaultdict(set)
        for word, after in uses:
            seen_before += word in topics
            total += 1
            topics[word].add(_TOPIC[after])
        assert all(len(of_word) == 1 for of_word in topics.values())
        assert 12 <= len(topics) <= 24
    assert seen_before / total > 0.6


def test_the_gain_that_is_promised(corpus):
    train, test = _uses(corpus)[:150], _uses(corpus)[150:]
    topics = collections.defaultdict(collections.Counter)
    for uses in train:
        for word, after in uses:
            topics[word][_TOPIC[after]] += 1
    pairs = [(word, _TOPIC[after]) for uses in test for word, after in uses if word in topics]
    # What a word means to others says nothing about what it means here.
    guessed = np.mean([topics[word].most_common(1)[0][0] == topic for word, topic in pairs])
    assert abs(guessed - 1 / 8) < 0.06
    after = [after for uses in test for _, after in uses]
    favourite = np.mean([any(t.split()[0] == word for t in _FAVOURITES) for word in after])
    assert favourite == pytest.approx(0.6, abs=0.03)
    predictions = corpus.words.size + corpus.num_sentences
    assert sum(map(len, _uses(corpus))) / predictions == pytest.approx(0.18, abs=0.01)


def test_plain_sentences_are_of_one_topic():
    corpus = generate_corpus(num_clients=5, seed=0, personal_share=0.0)
    assert corpus.words.max() < len(base_words())
    for start, end in zip(corpus.sentence_offsets, corpus.sentence_offsets[1:]):
        words = set(corpus.lexicon[corpus.words[start:end]]) - set(FUNCTION_WORDS)
        assert len({_TOPIC[word] for word in words}) == 1


def test_seeded(corpus):
    again, other = (generate_corpus(seed=seed) for seed in (3, 4))
    assert np.array_equal(corpus.words, again.words)
    assert list(corpus.lexicon) == list(again.lexicon)
    assert not np.array_equal(corpus.words, other.words)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_clients": 0}, "num_clients must be a whole number >= 1, got 0"),
        ({"seed": -1}, "seed .* got -1"),
        ({"min_sentences": 1}, "min_sentences must be a whole number >= 2, got 1"),
        ({"max_sentences": 39}, "max_sentences must be a whole number >= 40, got 39"),
        ({"words_per_client": 1}, "words_per_client must be a whole number >= 2, got 1"),
        ({"num_personal_words": 23}, "num_personal_words must be a whole number >= 24, got 23"),
        ({"num_personal_words": 70_000}, "num_personal_words must be at most 64000, got 70000"),
        ({"personal_share": 1.1}, r"personal_share must be in \[0, 1\], got 1.1"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UserError, match=message):
        generate_corpus(**{"seed": 0, **options})
