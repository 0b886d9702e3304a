"""Clients' examples: padded batches, the rows that they touch, and draws for a round."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.batches import pad_batches, sample_examples, touched_rows
from fedpersonal.data.clients import ClientDataset

_COUNTS = (3, 0, 7, 4)


def _make() -> ClientDataset:
    rng = np.random.default_rng(0)
    n = sum(_COUNTS)
    return ClientDataset(
        client_ids=np.array(["a", "b", "c", "d"], object),
        offsets=np.concatenate([[0], np.cumsum(_COUNTS)]),
        features={
            "item": rng.integers(1, 9, n).astype(np.int32),
            "image": rng.random((n, 2, 3)),
            "word": np.array([f"w{i}" for i in range(n)], object),
        },
        labels=rng.random(n).astype(np.float32),
    )


def _expected(
    column: np.ndarray, rows: slice, batch_size: int, num_batches: int, repeats: bool = False
) -> np.ndarray:
    padding = "" if column.dtype == object else 0
    out = np.full((num_batches, batch_size) + column.shape[1:], padding, column.dtype)
    for k, row in enumerate(range(rows.start, rows.stop)):
        out[k // batch_size, k % batch_size] = column[row]
        if repeats and k % batch_size == 0:
            out[k // batch_size] = column[row]
    return out


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 10])
def test_equals_a_loop(batch_size):
    dataset = _make()
    clients = [3, 2, 1, 2, 0]
    needed = -(-max(_COUNTS) // batch_size)
    batches = pad_batches(dataset, clients, batch_size=batch_size)

    columns = {**dataset.features, "label": dataset.labels}
    found = {**batches.features, "label": batches.labels}
    for i, client in enumerate(clients):
        rows, shape = slice(*dataset.offsets[client : client + 2]), (batch_size, needed)
        for name, column in columns.items():
            expected = _expected(column, rows, *shape, repeats=name != "label")
            np.testing.assert_array_equal(found[name][i], expected)
        ones = np.ones(dataset.num_examples, np.float32)
        np.testing.assert_array_equal(batches.mask[i], _expected(ones, rows, *shape))
    assert batches.mask.dtype == np.float32
    assert {name: v.dtype for name, v in found.items()} == {k: v.dtype for k, v in columns.items()}


def test_clients_without_examples_get_one_empty_batch():
    batches = pad_batches(_make(), [1], batch_size=4)
    assert batches.labels.shape == (1, 1, 4)
    assert not batches.mask.any()
    empty = _make().filter_examples(np.zeros(sum(_COUNTS), bool))
    assert not pad_batches(empty, [0, 1], batch_size=4).mask.any()


def test_no_clients():
    batches = pad_batches(_make(), [], batch_size=4)
    assert batches.features["image"].shape == (0, 1, 4, 2, 3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("num_ids", [1, 5, 1000, 2**31])
def test_equals_unique(seed, num_ids):
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, num_ids, (6, 4, 5))
    mask = (rng.random(ids.shape) < 0.6).astype(np.float32)
    mask[2] = 0
    ids[mask == 0] = -7  # What stands under padding must not matter.
    rows, positions = touched_rows(ids, mask)

    distinct = [np.unique(i[m > 0]) for i, m in zip(ids, mask)]
    assert rows.shape == (6, max(map(len, distinct)))
    for found, expected in zip(rows, distinct):
        np.testing.assert_array_equal(found[: len(expected)], expected)
        assert not found[len(expected) :].any()
    flat = np.take_along_axis(rows, positions.reshape(6, -1), axis=1)
    np.testing.assert_array_equal(flat.reshape(ids.shape)[mask > 0], ids[mask > 0])
    assert not positions[mask == 0].any()
    assert rows.dtype == positions.dtype == np.int32


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 3)])
def test_nothing_touched_still_gives_one_row(shape):
    rows, positions = touched_rows(np.ones(shape, int), np.zeros(shape))
    assert rows.tolist() == [[0]] * shape[0]
    assert positions.shape == shape


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
    found = sample_examples(dataset, clients, count=count, seed=seed, round_number=round_number)
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
