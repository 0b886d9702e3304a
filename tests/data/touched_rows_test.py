"""Tests of `touched_rows` against `np.unique`, client by client."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.batches import touched_rows
from fedpersonal.errors import UserError


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


def test_clients_with_fewer_rows_are_padded():
    ids = np.array([[[8, 3], [8, 0]], [[5, 5], [5, 9]]], np.int32)
    mask = np.array([[[1, 1], [1, 0]], [[1, 1], [1, 0]]], bool)
    rows, positions = touched_rows(ids, mask)
    assert rows.tolist() == [[3, 8], [5, 0]]
    assert positions.tolist() == [[[1, 0], [1, 0]], [[0, 0], [0, 0]]]


@pytest.mark.parametrize("shape", [(0, 2, 3), (2, 0, 3), (2, 2, 3)])
def test_nothing_touched_still_gives_one_row(shape):
    rows, positions = touched_rows(np.ones(shape, int), np.zeros(shape))
    assert rows.tolist() == [[0]] * shape[0]
    assert positions.shape == shape


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[[1, -2]]], np.ones((1, 1, 2)), "got -2"),
        ([[[1, 2**31]]], np.ones((1, 1, 2)), "got 2147483648"),
        ([[[1.0, 2.0]]], np.ones((1, 1, 2)), "float64"),
        ([[[1, 2]]], np.ones((1, 2)), r"mask of shape \(1, 2\)"),
    ],
)
def test_wrong_arguments_are_refused(ids, mask, message):
    with pytest.raises(UserError, match=message):
        touched_rows(np.array(ids), mask)
