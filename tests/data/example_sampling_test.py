"""The examples that clients draw for a round."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.batches import draw_examples
from fedpersonal.errors import UserError

COUNTS = (40, 3, 1, 12, 40)


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    """Each example is its own number; a feature is ten times as much."""
    ends = np.cumsum(COUNTS)
    return make_dataset(
        [
            ({"tenfold": 10 * np.arange(end - n, end)[:, None]}, np.arange(end - n, end))
            for n, end in zip(COUNTS, ends)
        ]
    )


def drawn(dataset, clients, *, count=5, seed=1, round_number=2):
    """Returns the examples that each client draws."""
    found = draw_examples(dataset, clients, count=count, seed=seed, round_number=round_number)
    assert found.client_ids.tolist() == dataset.client_ids[np.array(clients, int)].tolist()
    np.testing.assert_array_equal(found.features["tenfold"][:, 0], 10 * found.labels)
    return [found.client(i)[1].tolist() for i in range(len(clients))]


def test_clients_draw_own_examples_without_repeats(dataset):
    clients = [3, 0, 2, 1]
    found = drawn(dataset, clients)
    assert [len(own) for own in found] == [5, 5, 1, 3]
    for client, own in zip(clients, found):
        everything = set(range(*dataset.offsets[client : client + 2]))
        assert len(set(own)) == len(own) and set(own) <= everything
    assert sorted(drawn(dataset, [0], count=40)[0]) == list(range(40)) != drawn(dataset, [0])


def test_a_draw_depends_on_seed_and_client_alone(dataset):
    together = drawn(dataset, [0, 1, 3])
    assert together == drawn(dataset, [0, 1, 3])
    assert together[::-1] == drawn(dataset, [3, 1, 0])
    assert [together[0]] == drawn(dataset, [0]) and [together[2]] == drawn(dataset, [3])
    # Clients with as many examples draw apart from each other.
    first, last = drawn(dataset, [0, 4])
    assert first != [number - 56 for number in last]
    others = [
        drawn(dataset, [0], seed=seed, round_number=number)[0]
        for seed, number in ((1, 3), (0, 2), (2, 1))
    ]
    assert len({tuple(own) for own in [together[0], *others]}) == 4


def test_every_example_and_order_is_as_likely(dataset):
    firsts = [drawn(dataset, [3], count=2, round_number=number)[0] for number in range(1200)]
    counts = np.array([np.bincount(np.array(firsts)[:, i] - 44, minlength=12) for i in (0, 1)])
    assert 60 < counts.min() and counts.max() < 140


def test_no_clients_draw_nothing(dataset):
    assert drawn(dataset, []) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 0}, "count must be a whole number >= 1, got 0"),
        ({"client_indices": [5]}, "5"),
        ({"client_indices": [-1]}, "-1"),
    ],
)
def test_mistakes(dataset, options, said):
    with pytest.raises(UserError, match=said):
        given = {"client_indices": [0], "count": 2, "seed": 0, "round_number": 1}
        draw_examples(dataset, **{**given, **options})
