"""Generated data have the traits that are promised: what a method can gain is in them."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest

from fedpersonal.suite.readers.generated.corpus import (
    FUNCTION_WORDS,
    TOPICS,
    base_words,
    generate_corpus,
)
from fedpersonal.suite.readers.generated.dialogues import CONTEXTS, generate_dialogues
from fedpersonal.suite.readers.generated.documents import generate_subreddits
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.labelled_texts import most_frequent_labels
from fedpersonal.suite.readers.sentences import count_words, split_sentences
from fedpersonal.suite.readers.vocabulary import build_vocabulary


@pytest.mark.parametrize(
    "generate",
    [
        lambda seed: generate_ratings(num_users=9, num_items=50, seed=seed),
        lambda seed: generate_corpus(num_clients=9, seed=seed),
        lambda seed: generate_subreddits(num_users=9, seed=seed),
        lambda seed: generate_dialogues(num_utterances=99, seed=seed).named,
        lambda seed: generate_dialogues(num_other_utterances=99, seed=seed).others,
    ],
)
def test_the_same_seed_gives_the_same_data(generate):
    prints = [generate(seed).fingerprint() for seed in (3, 3, 4)]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(("num_users", "num_items"), [(300, 100_000), (300, 400), (20, 20)])
def test_traits(num_users, num_items):
    ratings = generate_ratings(num_users=num_users, num_items=num_items, seed=1)
    assert (ratings.user_ids.size, ratings.item_ids.size) == (num_users, num_items)
    counts = np.bincount(ratings.users, minlength=num_users)
    assert counts.min() >= 20 and counts.max() <= min(200, num_items)
    pairs = ratings.users.astype(np.int64) * num_items + ratings.items
    assert np.unique(pairs).size == ratings.ratings.size
    assert (np.diff(ratings.users) >= 0).all()
    assert ratings.items.min() >= 0 and ratings.items.max() < num_items
    assert set(ratings.ratings) == {1, 2, 3, 4, 5}
    assert (np.diff(ratings.times)[np.diff(ratings.users) == 0] > 0).all()
    dtypes = [a.dtype for a in (ratings.users, ratings.items, ratings.ratings, ratings.times)]
    assert dtypes == [np.int32, np.int32, np.float32, np.int64]


def test_tails_are_long():
    ratings = generate_ratings(num_users=500, num_items=2000, seed=2)
    by_item = np.sort(np.bincount(ratings.items, minlength=2000))[::-1]
    assert by_item[:200].sum() > 0.4 * ratings.ratings.size
    counts = np.bincount(ratings.users)
    assert np.median(counts) < counts.mean()


def test_taste_is_of_low_rank():
    ratings = generate_ratings(num_users=60, num_items=60, seed=3, rank=2, min_ratings=60)
    table = np.zeros((60, 60))
    table[ratings.users, ratings.items] = ratings.ratings
    table -= table.mean(axis=0)
    table -= table.mean(axis=1, keepdims=True)
    shares = np.linalg.svd(table, compute_uv=False) ** 2
    # Two factors stand out from the noise of rounding and chance.
    assert shares[1] > 2 * shares[2]
    assert shares[2] < 2 * shares[3]


_TOPIC = {
    word: number
    for number, parts in enumerate(TOPICS.values())
    for part in parts
    for word in part.split()
}
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


def test_sizes_of_a_corpus(corpus):
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


def test_sizes_of_subreddits():
    documents = generate_subreddits(num_users=50, texts_per_user=(2, 5), seed=3)
    assert set(np.diff(documents.offsets)) == {2, 3, 4, 5}
    assert documents.num_clients == 50


def _words(texts) -> list[list[str]]:
    return [("<s> " + text + " </s>").split() for text in texts]


def _perplexity(train, test, num_words) -> float:
    """Of a smoothed bigram model, counted for each group of texts on its own."""
    loss = count = 0
    for group, texts in test.items():
        pairs, firsts = collections.Counter(), collections.Counter()
        for words in train[group]:
            pairs.update(zip(words, words[1:]))
            firsts.update(words[:-1])
        for words in texts:
            for first, second in zip(words, words[1:]):
                share = (pairs[first, second] + 0.02) / (firsts[first] + 0.02 * num_words)
                loss, count = loss - math.log(share), count + 1
    return math.exp(loss / count)


def test_the_context_helps_and_the_speaker_helps_more():
    dialogues = generate_dialogues(seed=1).named
    words = _words(dialogues.texts)
    num_words = len({word for text in words for word in text})
    speakers = dialogues.to_client_dataset().example_clients
    perplexities = []
    for groups in (np.zeros_like(speakers), dialogues.labels, speakers):
        train, test = collections.defaultdict(list), collections.defaultdict(list)
        for i, (group, text) in enumerate(zip(groups, words)):
            (train if i % 2 else test)[group].append(text)
        perplexities.append(_perplexity(train, test, num_words))
    everyone, context, speaker = perplexities
    assert context < 0.95 * everyone
    assert speaker < 0.75 * context


def test_contexts_have_words_of_their_own():
    dialogues = generate_dialogues(seed=2).named
    own = [{w for part in context[:3] for w in part.split()} for context in CONTEXTS.values()]
    assert not own[0] & own[1]
    for text, context in zip(dialogues.texts, dialogues.labels):
        said = set(text.replace(",", " ").split())
        assert len(said & own[context]) == 3 and not said & own[1 - context]
        assert split_sentences(text) == [text]
    assert count_words(dialogues.texts).min() >= 8


def test_sizes_of_dialogues():
    dialogues = generate_dialogues(seed=3)
    for part, users in ((dialogues.named, (6, 8)), (dialogues.others, (15, 15))):
        assert part.texts.size == 6000
        assert part.num_clients == sum(users)
        assert part.label_names.tolist() == list(CONTEXTS)
        first = part.labels[part.offsets[:-1]]
        assert np.bincount(first).tolist() == list(users)
    assert not set(dialogues.named.client_ids) & set(dialogues.others.client_ids)
    small = generate_dialogues(users_per_context=(1, 2), num_utterances=9, seed=0).named
    assert np.diff(small.offsets).tolist() == [3, 3, 3]
