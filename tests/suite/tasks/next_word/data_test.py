"""Who trains on which sentences: nothing that is tested has been trained on."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.corpus import generate_corpus
from fedpersonal.suite.readers.stack_overflow import StackOverflow, StackOverflowClients
from fedpersonal.suite.readers.vocabulary import EOS, Vocabulary
from fedpersonal.suite.tasks.next_word.data import sample_stack_overflow, split_text
from fedpersonal.suite.tasks.next_word.task import TASK

NUM_CLIENTS, BATCH_SIZE = 43, 3
OPTIONS = {
    "vocab_size": 30,
    "num_oov_buckets": 4,
    "sequence_length": 9,
    "client_batch_size": BATCH_SIZE,
}


@pytest.fixture(name="corpus", scope="module")
def _corpus():
    return generate_corpus(num_clients=NUM_CLIENTS, seed=1, min_sentences=2, max_sentences=20)


def split(corpus, **options):
    return split_text(corpus, TASK.options(**{**OPTIONS, **options}))


def sample(data, *, max_test_clients=2_000, **options):
    options = TASK.options(client_batch_size=1, **options)
    return sample_stack_overflow(data, options, max_test_clients=max_test_clients)


def parts_of(data):
    return [data.train, *(getattr(part, name) for part, name in _evaluated(data))]


def _evaluated(data):
    return [(part, name) for part in (data.validation, data.test) for name in ("support", "query")]


def sentences(dataset, client):
    """The tokens and labels of a client, by its name, a row a sentence."""
    (index,) = np.flatnonzero(dataset.client_ids == client)
    features, labels = dataset.client(index)
    return np.concatenate([features["token"], labels], axis=1).tolist()


def test_every_client_is_in_one_part(corpus):
    data = split(corpus)
    train, validation, test = (
        set(clients.client_ids) for clients in (data.train, data.validation.query, data.test.query)
    )
    assert (len(train), len(validation), len(test)) == (34, 5, 4)
    assert train | validation | test == set(corpus.client_ids)
    assert data.name == "generated"
    assert sum(part.num_examples for part in parts_of(data)) == corpus.num_sentences
    for part in (data.validation, data.test):
        np.testing.assert_array_equal(part.support.client_ids, part.query.client_ids)


@pytest.mark.parametrize("kind", ["aggregated", "skip"])
def test_support_and_query_sets_are_of_whole_batches(corpus, kind):
    data = split(corpus, support_query_split=kind)
    everyone = split(corpus, support_query_split="aggregated")
    for part in ("validation", "test"):
        support, query = getattr(data, part).support, getattr(data, part).query
        halves = getattr(everyone, part)
        for client in support.client_ids:
            # In order: the corpus' sentences are by time, and so halves put together are too.
            own = sentences(halves.support, client) + sentences(halves.query, client)
            batches = [own[i : i + BATCH_SIZE] for i in range(0, len(own), BATCH_SIZE)]
            half = -(-len(batches) // 2)
            ours, asked = {
                "aggregated": (batches[:half], batches[half:]),
                "skip": (batches[::2], batches[1::2]),
            }[kind]
            assert sentences(support, client) == sum(ours, [])
            assert sentences(query, client) == sum(asked, [])
    assert data.test.query.num_examples > 0


def test_support_comes_before_query(corpus):
    """By the corpus' own order, which for texts is that of time."""
    data = split(corpus)
    ids = data.vocabulary.ids(corpus.lexicon)
    for client in data.test.query.client_ids:
        (index,) = np.flatnonzero(corpus.client_ids == client)
        first, last = corpus.client_offsets[index : index + 2]
        written = [
            ids[corpus.words[start:end]].tolist()[:9]
            for start, end in zip(
                corpus.sentence_offsets[first:last], corpus.sentence_offsets[first + 1 : last + 1]
            )
        ]
        rows = sentences(data.test.support, client) + sentences(data.test.query, client)
        # Labels are words and then the end, and padding.
        assert [[t for t in row[9:] if t > 2] for row in rows] == written


def test_what_follows_a_personal_word_is_found_by_the_word_itself():
    """Whatever shares its bucket: an unknown word that the client's support set has."""
    corpus = generate_corpus(num_clients=NUM_CLIENTS, seed=1)
    data = split(corpus, num_oov_buckets=1)
    vocabulary, tested, chosen = data.vocabulary, data.test, data.after_personal_words
    known, count = {*vocabulary.words}, 0
    for client in tested.query.client_ids:
        (index,) = np.flatnonzero(corpus.client_ids == client)
        first, last = corpus.client_offsets[index : index + 2]
        bounds = corpus.sentence_offsets[first : last + 1]
        written = [
            corpus.lexicon[corpus.words[a:b]].tolist()[:9] for a, b in zip(bounds, bounds[1:])
        ]
        half = len(sentences(tested.support, client))
        personal = {word for sentence in written[:half] for word in sentence} - known
        rows = sentences(chosen.query, client), sentences(tested.query, client)
        for words, row, usual in zip(written[half:], *rows):
            assert row[:9] == usual[:9]
            follows = [False, *(word in personal for word in words), *[False] * 9][:9]
            kept = [label if own else min(label, EOS) for own, label in zip(follows, usual[9:])]
            assert row[9:] == kept
            count += sum(follows)
    assert count > 100
    np.testing.assert_array_equal(chosen.support.labels, tested.support.labels)


def test_shared_is_evaluated_as_aggregated(corpus):
    shared, aggregated = (
        split(corpus, support_query_split=kind) for kind in ("shared", "aggregated")
    )
    for one, other in zip(parts_of(shared), parts_of(aggregated)):
        np.testing.assert_array_equal(one.client_ids, other.client_ids)
        np.testing.assert_array_equal(one.offsets, other.offsets)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_the_vocabulary_is_of_the_training_clients(corpus):
    data = split(corpus)
    train = corpus.subset(np.flatnonzero(np.isin(corpus.client_ids, data.train.client_ids)))
    counts = np.bincount(train.words, minlength=len(corpus.lexicon))
    known = np.isin(corpus.lexicon, data.vocabulary.words)
    assert known.sum() == 30 and data.vocabulary.num_oov_buckets == 4
    assert counts[known].min() >= counts[~known].max()
    # With what only others write counted too, it would be another one.
    everyone = np.bincount(corpus.words, minlength=len(corpus.lexicon))
    assert everyone[known].min() < everyone[~known].max()
    test = corpus.subset(np.flatnonzero(np.isin(corpus.client_ids, data.test.query.client_ids)))
    assert data.coverage == pytest.approx(known[test.words].mean())


def test_splits_follow_the_seed(corpus):
    one, same, other = (split(corpus, seed=seed).train.client_ids.tolist() for seed in (0, 0, 1))
    assert one == same and set(one) != set(other)


def test_fewer_validation_clients(corpus):
    data = split(corpus)
    fewer = split(corpus, max_validation_clients=2)
    assert fewer.validation.query.client_ids.tolist() == (
        data.validation.query.client_ids[:2].tolist()
    )
    np.testing.assert_array_equal(fewer.train.labels, data.train.labels)
    np.testing.assert_array_equal(fewer.test.query.labels, data.test.query.labels)


def test_too_little_is_refused(corpus):
    with pytest.raises(UserError, match="generated has 9 users; at least 10"):
        split(corpus.subset(range(9)))
    assert split(corpus.subset(range(10))).test.query.num_clients == 1
    with pytest.raises(UserError, match="vocab_size=5000 is more than the"):
        split(corpus, vocab_size=5000)


@pytest.fixture(name="stack_overflow", scope="module")
def _stack_overflow():
    tff = pytest.importorskip("tensorflow_federated")
    client_data = tff.simulation.datasets.stackoverflow.get_synthetic()
    vocabulary = Vocabulary(["the", "is", "."], 2)
    return StackOverflow(
        *(
            StackOverflowClients(client_data, vocabulary, name=name)
            for name in ("train", "validation", "test")
        ),
        vocabulary,
    )


def test_stack_overflow_has_its_own_parts(stack_overflow):
    data = sample(stack_overflow, support_query_split="aggregated", seed=0)
    assert data.train is stack_overflow.train
    assert data.vocabulary is stack_overflow.vocabulary
    assert (data.name, data.coverage) == ("stack_overflow", None)
    for part in (data.validation, data.test):
        assert sorted(part.query.client_ids) == ["synthetic_1", "synthetic_2", "synthetic_3"]
        for i, client in enumerate(part.query.client_ids):
            (whole,) = np.flatnonzero(stack_overflow.test.client_ids == client)
            whole = stack_overflow.test.subset([whole]).labels
            own = np.concatenate([part.support.client(i)[1], part.query.client(i)[1]])
            np.testing.assert_array_equal(own, whole)
        assert set(part.support.counts - part.query.counts) <= {0, 1}
    fewer = sample(
        stack_overflow,
        support_query_split="shared",
        max_validation_clients=2,
        max_test_clients=1,
    )
    for part, others, count in (
        (fewer.validation, data.validation, 2),
        (fewer.test, data.test, 1),
    ):
        assert part.query.client_ids.tolist() == others.query.client_ids[:count].tolist()
    orders = {
        tuple(sample(stack_overflow, support_query_split="skip", seed=seed).test.query.client_ids)
        for seed in range(5)
    }
    assert len(orders) > 1
