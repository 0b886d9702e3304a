"""Which batches are in which part, written out for clients of zero to five batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.data.parts import (
    PARTS,
    QUERY_PARTS,
    SPLITS,
    SUPPORT_PARTS,
    count_batches,
    find_batch,
    is_in_part,
)

EXPECTED = {
    "support": [[], [0], [0], [0, 2], [0, 2], [0, 2, 4]],
    "query": [[], [], [1], [1], [1, 3], [1, 3]],
    "first_half": [[], [0], [0], [0, 1], [0, 1], [0, 1, 2]],
    "second_half": [[], [], [1], [2], [2, 3], [3, 4]],
    "all": [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],
}


def test_every_part_is_written_out():
    assert set(PARTS) == set(EXPECTED)
    assert set(PARTS) == {*SUPPORT_PARTS, *QUERY_PARTS, "all"}


@pytest.mark.parametrize("part", PARTS)
def test_of_plain_numbers(part):
    for num_batches, expected in enumerate(EXPECTED[part]):
        count = count_batches(part, num_batches)
        assert [find_batch(part, place, num_batches) for place in range(count)] == expected
        inside = [i for i in range(num_batches) if is_in_part(part, i, num_batches)]
        assert inside == expected


@pytest.mark.parametrize("as_values", [np.array, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("part", PARTS)
def test_of_arrays_of_clients(part, as_values):
    num_batches = as_values(range(6), np.int32)
    expected = EXPECTED[part]
    counts = np.array(count_batches(part, num_batches))
    np.testing.assert_array_equal(counts, [len(batches) for batches in expected])
    places = np.arange(5, dtype=np.int32)[:, np.newaxis]
    found = np.array(find_batch(part, as_values(places), num_batches))
    found = np.broadcast_to(found, (5, 6))
    inside = np.array(is_in_part(part, as_values(places.T), num_batches[:, np.newaxis]))
    inside = np.broadcast_to(inside, (6, 5))
    for client, batches in enumerate(expected):
        assert found[: counts[client], client].tolist() == batches
        assert np.flatnonzero(inside[client, :client]).tolist() == batches


@pytest.mark.parametrize("split", SPLITS)
def test_splits_share_nothing_or_all(split):
    support, query = (EXPECTED[part] for part in SPLITS[split])
    for num_batches in range(6):
        if split == "shared":
            assert support[num_batches] == query[num_batches] == list(range(num_batches))
        else:
            both = sorted(support[num_batches] + query[num_batches])
            assert both == list(range(num_batches))
            assert len(support[num_batches]) - len(query[num_batches]) in (0, 1)
