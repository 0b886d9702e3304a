"""Who trains on which utterances, and what stands beside one as its author's history."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.dialogues import generate_dialogues
from fedpersonal.suite.readers.utterances import Utterances
from fedpersonal.suite.tasks.utterances.data import (
    NO_TOKEN,
    add_sampled_history,
    add_support_history,
    finetuning_sets,
    split_utterances,
)
from fedpersonal.suite.tasks.utterances.task import TASK


def split(utterances, encode, evaluate_on="seen", **options):
    options = TASK.options(**{"text_length": 12, **options}, evaluate_on=evaluate_on)
    return split_utterances(utterances, encode, options, end=1)


def _encode(texts):
    """The lengths of words as ids, from 2."""
    return [[len(word) + 2 for word in text.split()] for text in texts]


@pytest.fixture(name="utterances", scope="module")
def _utterances():
    return generate_dialogues(num_utterances=1500, num_other_utterances=90, seed=1).named


def _make(users):
    """Utterances of users with a list of contexts each; the text numbers the utterance."""
    contexts = [context for own in users for context in own]
    return Utterances(
        name="made up",
        client_ids=[f"u{i}" for i in range(len(users))],
        offsets=np.cumsum([0] + [len(own) for own in users]),
        texts=[str(i) for i in range(len(contexts))],
        labels=contexts,
        label_names=[f"c{i}" for i in range(max(contexts) + 1)],
    )


def _parts(data):
    """All utterances for training, validation and test."""
    return data.train, _merged(data.validation), data.test_clients


def _merged(part):
    """Both sets of each client as one."""
    support, query = part.support, part.query
    clients = np.concatenate([support.example_clients, query.example_clients])
    order = np.argsort(clients, kind="stable")
    features = {
        name: np.concatenate([support.features[name], column])[order]
        for name, column in query.features.items()
    }
    return dataclasses.replace(
        query,
        offsets=np.concatenate([[0], np.cumsum(support.counts + query.counts)]),
        features=features,
        labels=np.concatenate([support.labels, query.labels])[order],
    )


def _number(texts):
    return [[int(text) + 2] for text in texts]


def test_ids_and_labels():
    utterances = Utterances(
        name="t",
        client_ids=["a", "b"],
        offsets=[0, 20, 40],
        texts=["aa b", "", "a b c d e f", "aa b c", "a b c d"] * 8,
        labels=[1, 0, 1, 0, 1] * 8,
        label_names=["x", "y"],
    )
    data = split(utterances, _encode, text_length=4, seed=1)
    expected = {
        (4, 3, 1, 0): (4, 3, 1, -1),
        (1, 0, 0, 0): (1, -1, -1, -1),
        (3, 3, 3, 3): (3, 3, 3, 3),
        (4, 3, 3, 1): (4, 3, 3, 1),
    }
    found = set()
    for part in _parts(data):
        for column in (*part.features.values(), part.labels):
            assert column.dtype == np.int32
        for ids, labels in zip(part.features["text"].tolist(), part.labels.tolist()):
            assert tuple(labels) == expected[tuple(ids)]
            found.add(tuple(ids))
        assert part.features["user"].tolist() == part.example_clients.tolist()
    assert found == set(expected)
    assert data.name == "t" and data.test.seen
    assert (data.train.num_clients, data.context_names.tolist()) == (2, ["x", "y"])


def test_long_utterances_can_be_refused(utterances):
    texts = utterances.texts.tolist()
    longest = max(len(text.split()) for text in texts)
    options = {"text_length": longest, "too_long": "error"}
    first = next(i for i, text in enumerate(texts) if len(text.split()) == longest)
    user = utterances.client_ids[np.searchsorted(utterances.offsets, first, "right") - 1]
    message = f"of '{user}' has {longest + 1} tokens .* {longest} positions: '{texts[first][:57]}"
    with pytest.raises(UserError, match=message):
        split(utterances, _encode, **options)
    data = split(utterances, _encode, **{**options, "text_length": longest + 1})
    assert data.train.labels.shape[1] == longest + 1


def test_seen_users_have_three_parts_of_their_utterances(utterances):
    numbered = _make([[0] * 10, [1] * 7, [0, 1] * 10])
    data = split(numbered, _number, seed=3)
    parts = _parts(data)
    for user in range(3):
        texts = [part.client(user)[0]["text"][:, 0].tolist() for part in parts]
        start, stop = numbered.offsets[user : user + 2]
        assert sorted(sum(texts, [])) == list(range(start + 2, stop + 2))
    assert [part.counts.tolist() for part in parts] == [[6, 5, 12], [2, 1, 4], [2, 1, 4]]
    one, same, other = (split(utterances, _encode, seed=s) for s in (0, 0, 1))
    assert one.test_clients.labels.tolist() == same.test_clients.labels.tolist()
    assert one.test_clients.labels.tolist() != other.test_clients.labels.tolist()
    for part in _parts(one):
        own = utterances.labels[utterances.offsets[:-1]]
        assert part.features["context"].tolist() == own[part.example_clients].tolist()


@pytest.mark.parametrize("seed", range(8))
def test_unseen_users_are_in_one_part_and_training_has_all_contexts(seed):
    random = np.random.default_rng(seed)
    users = [[0] * 4 for _ in range(20)] + [[1] * 4 for _ in range(13)]
    users += [[0, 0, 0, 2], [1, 1, 3], [4]]
    users = [users[i] for i in random.permutation(len(users))]
    data = split(_make(users), _number, "unseen", seed=seed)
    parts = _parts(data)
    assert [part.num_clients for part in parts] == [26, 5, 5]
    assert sorted(sum((p.client_ids.tolist() for p in parts), [])) == sorted(
        f"u{i}" for i in range(36)
    )
    assert set(data.train.features["context"]) == {0, 1, 2, 3, 4}
    for part in parts[1:]:
        assert set(part.features["context"]) == {0, 1}
        assert not part.features["user"].any()
    assert data.train.features["user"].tolist() == data.train.example_clients.tolist()
    assert not data.test.seen and not data.validation.seen
    for part in parts:
        for client, name in enumerate(part.client_ids):
            context = part.client(client)[0]["context"].tolist()
            assert context == users[int(name[1:])]


def test_unseen_users_follow_the_seed_and_the_contexts(utterances):
    tests = collections.Counter()
    for seed in range(40):
        data = split(utterances, _encode, "unseen", seed=seed)
        assert [p.num_clients for p in _parts(data)] == [10, 2, 2]
        contexts = data.train.features["context"][data.train.offsets[:-1]]
        assert 4 <= np.sum(contexts == 0) <= 5
        tests.update(data.test_clients.client_ids)
    assert len(tests) == 14
    assert max(tests.values()) < 20
    again = split(utterances, _encode, "unseen", seed=39)
    assert again.test_clients.client_ids.tolist() == data.test_clients.client_ids.tolist()


def test_finetuning_sets_are_nested_and_queries_the_same():
    data = split(_make([[0] * 100, [0] * 5, [0] * 10]), _number, seed=0)
    part = data.test_clients
    assert part.counts.tolist() == [20, 1, 2]
    queries, supports = [], []
    for num_samples in (0, 1, 5, 15, None):
        support, query = finetuning_sets(part, num_samples=num_samples, seed=4)
        queries.append(query.labels[:, 0].tolist())
        supports.append(set(support.labels[:, 0].tolist()))
        assert support.client_ids.tolist() == query.client_ids.tolist() == ["u0", "u1", "u2"]
        assert query.counts.tolist() == [10, 1, 1]
        limit = 20 if num_samples is None else num_samples
        assert support.counts.tolist() == [min(limit, 10), 0, min(limit, 1)]
    assert all(query == queries[0] for query in queries)
    assert all(few <= more for few, more in zip(supports, supports[1:]))
    assert supports[-1] | set(queries[0]) == set(part.labels[:, 0].tolist())
    assert not supports[-1] & set(queries[0])
    _, other = finetuning_sets(part, num_samples=1, seed=5)
    assert other.labels[:, 0].tolist() != queries[0]


def test_wrong_finetuning_options_are_refused(utterances):
    part = utterances.to_client_dataset()
    for options, message in (
        ({"num_samples": -1}, "num_samples must be a whole number >= 0, got -1"),
        ({"seed": -1}, "seed must be a whole number >= 0, got -1"),
    ):
        with pytest.raises(UserError, match=message):
            finetuning_sets(part, **{"num_samples": 1, "seed": 0, **options})


def test_too_little_is_refused():
    with pytest.raises(UserError, match="no user of made up has 3 utterances"):
        split(_make([[0, 0]] * 5), _number, seed=0)
    with pytest.raises(UserError, match="no utterance for training has the context 'c1'"):
        for seed in range(20):
            split(_make([[0, 0, 0, 0, 1]]), _number, seed=seed)
    with pytest.raises(UserError, match="made up has 2 users; at least 3"):
        split(_make([[0], [0]]), _number, "unseen", seed=0)
    with pytest.raises(UserError, match="the 1 users for training of made up cannot have all"):
        split(_make([[0], [0], [1]]), _number, "unseen", seed=0)
    assert split(_make([[0], [0], [0, 1]]), _number, "unseen", seed=0).train.num_clients == 1


COUNTS = (30, 1, 2, 7)
# A utterance's tokens are its number in the data set, as often as it is long.
LENGTHS = np.random.default_rng(2).integers(1, 6, sum(COUNTS))


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    labels = np.full([sum(COUNTS), 5], -1, np.int32)
    for number, (row, length) in enumerate(zip(labels, LENGTHS)):
        row[:length] = number
    ends = np.cumsum(COUNTS)
    return make_dataset(
        [
            ({"text": labels[end - n : end].clip(0)}, labels[end - n : end])
            for n, end in zip(COUNTS, ends)
        ]
    )


def whole(row):
    """Returns the numbers of the utterances in a row, the last of which may be cut."""
    tokens = row[row != NO_TOKEN].tolist()
    assert (row[len(tokens) :] == NO_TOKEN).all()
    numbers = []
    while tokens:
        numbers.append(tokens[0])
        length = LENGTHS[tokens[0]]
        assert set(tokens[:length]) == {numbers[-1]}
        tokens = tokens[length:]
    return numbers


def test_a_history_is_of_others_of_the_same_client(dataset):
    found = add_sampled_history(dataset, length=60, num_samples=[1, 4, 9], seed=0)
    assert found.features["history"].dtype == np.int32
    np.testing.assert_array_equal(found.features["text"], dataset.features["text"])
    np.testing.assert_array_equal(found.labels, dataset.labels)
    sizes = []
    for number, (client, row) in enumerate(zip(dataset.example_clients, found.features["history"])):
        numbers = whole(row)
        assert number not in numbers
        assert set(numbers) <= set(range(*dataset.offsets[client : client + 2]))
        sizes.append(len(numbers))
    assert sizes[30] == 0  # Who has written one thing alone has no other.
    assert set(sizes[:30] + sizes[31:]) == {1, 4, 9}
    first, second = (whole(found.features["history"][i]) for i in (31, 32))
    assert set(first) == {32} and set(second) == {31}


def test_all_others_are_as_likely(dataset):
    seen = np.zeros([7, 7])
    for seed in range(80):
        found = add_sampled_history(dataset, length=40, num_samples=[5], seed=seed)
        for place in range(7):
            np.add.at(seen[place], np.array(whole(found.features["history"][33 + place])) - 33, 1)
    assert not seen.diagonal().any()
    others = seen[~np.eye(7, dtype=bool)]
    assert others.sum() == 80 * 7 * 5 and 35 < others.min() and others.max() < 105


def test_draws_follow_the_seed(dataset):
    def draw(seed):
        found = add_sampled_history(dataset, length=20, num_samples=[1, 5], seed=seed)
        return found.features["history"].tolist()

    assert draw(1) == draw(1) != draw(2)


def test_long_histories_are_cut(dataset):
    short, long = (
        add_sampled_history(dataset, length=length, num_samples=[15], seed=3).features["history"]
        for length in (4, 90)
    )
    assert short.shape == (40, 4)
    np.testing.assert_array_equal(short, long[:, :4])
    assert (short[:30] != NO_TOKEN).all()


def test_a_support_set_is_the_history_of_all(dataset):
    support = dataset.subset([0, 1, 2, 3])
    rows = np.array([2, 0, 31, 33, 36])
    support = type(dataset)(
        client_ids=dataset.client_ids,
        offsets=np.array([0, 2, 2, 3, 5]),
        features={"text": dataset.features["text"][rows]},
        labels=dataset.labels[rows],
    )
    found = add_support_history(dataset, support, length=12)
    expected = {0: [2, 0], 1: [], 2: [31], 3: [33, 36]}
    for client, row in zip(dataset.example_clients, found.features["history"]):
        assert whole(row) == expected[client]
    assert found.features["history"].shape == (40, 12)
