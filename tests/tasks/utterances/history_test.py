"""What stands beside an utterance as its author's history."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.tasks.utterances.data import NO_TOKEN, add_history_of, add_own_history

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
    found = add_own_history(dataset, length=60, num_samples=[1, 4, 9], seed=0)
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
        found = add_own_history(dataset, length=40, num_samples=[5], seed=seed)
        for place in range(7):
            np.add.at(seen[place], np.array(whole(found.features["history"][33 + place])) - 33, 1)
    assert not seen.diagonal().any()
    others = seen[~np.eye(7, dtype=bool)]
    assert others.sum() == 80 * 7 * 5 and 35 < others.min() and others.max() < 105


def test_draws_follow_the_seed(dataset):
    def draw(seed):
        found = add_own_history(dataset, length=20, num_samples=[1, 5], seed=seed)
        return found.features["history"].tolist()

    assert draw(1) == draw(1) != draw(2)


def test_long_histories_are_cut(dataset):
    short, long = (
        add_own_history(dataset, length=length, num_samples=[15], seed=3).features["history"]
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
    found = add_history_of(dataset, support, length=12)
    expected = {0: [2, 0], 1: [], 2: [31], 3: [33, 36]}
    for client, row in zip(dataset.example_clients, found.features["history"]):
        assert whole(row) == expected[client]
    assert found.features["history"].shape == (40, 12)
