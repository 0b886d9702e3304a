"""Tests of `pad_batches` against a loop over clients and batches."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.batches import pad_batches
from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError

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


def _expected(column: np.ndarray, rows: slice, batch_size: int, num_batches: int) -> np.ndarray:
    padding = "" if column.dtype == object else 0
    out = np.full((num_batches, batch_size) + column.shape[1:], padding, column.dtype)
    for k, row in enumerate(range(rows.start, rows.stop)):
        out[k // batch_size, k % batch_size] = column[row]
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
            np.testing.assert_array_equal(found[name][i], _expected(column, rows, *shape))
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


@pytest.mark.parametrize(
    ("clients", "options", "message"),
    [
        ([4], dict(batch_size=3), "the index 4"),
        ([0], dict(batch_size=0), "batch_size must be a whole number >= 1, got 0"),
        ([0], dict(batch_size=2.0), "batch_size .* got 2.0"),
    ],
)
def test_wrong_arguments_are_refused(clients, options, message):
    with pytest.raises(UserError, match=message):
        pad_batches(_make(), clients, **options)
