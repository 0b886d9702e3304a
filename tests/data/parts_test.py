"""Which batches are in which part, written out for clients of zero to five batches."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.data.splits import (
    PARTS,
    QUERY_PARTS,
    SPLITS,
    SUPPORT_PARTS,
    check_part,
    count_batches,
    find_batch,
    is_in_part,
    is_query,
    split_parts,
)

EXPECTED = {
    "support": [[], [0], [0], [0, 2], [0, 2], [0, 2, 4]],
    "query": [[], [], [1], [1], [1, 3], [1, 3]],
    "first_half": [[], [0], [0], [0, 1], [0, 1], [0, 1, 2]],
    "second_half": [[], [], [1], [2], [2, 3], [3, 4]],
    "all": [[], [0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]],
    "support 1/3": [[], [0], [0], [0], [0, 3], [0, 3]],
    "query 1/3": [[], [], [1], [1, 2], [1, 2], [1, 2, 4]],
    "first_half 1/3": [[], [0], [0], [0], [0, 1], [0, 1]],
    "second_half 1/3": [[], [], [1], [1, 2], [2, 3], [2, 3, 4]],
    "support 3/4": [[], [0], [0, 1], [0, 1, 2], [0, 1, 2], [0, 1, 2, 4]],
    "query 3/4": [[], [], [], [], [3], [3]],
}


def test_every_part_is_written_out():
    assert set(PARTS) == {part for part in EXPECTED if " " not in part}
    assert set(PARTS) == {*SUPPORT_PARTS, *QUERY_PARTS, "all"}


@pytest.mark.parametrize("part", EXPECTED)
def test_of_plain_numbers(part):
    for num_batches, expected in enumerate(EXPECTED[part]):
        count = count_batches(part, num_batches)
        assert [find_batch(part, place, num_batches) for place in range(count)] == expected
        inside = [i for i in range(num_batches) if is_in_part(part, i, num_batches)]
        assert inside == expected


@pytest.mark.parametrize("as_values", [np.array, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("part", EXPECTED)
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


@pytest.mark.parametrize("share", [0.01, 0.2, 1 / 3, 0.5, 0.66, 0.8, 0.99])
@pytest.mark.parametrize("split", ["skip", "aggregated"])
def test_shares_are_as_asked_and_dealt_out_evenly(split, share):
    support, query = split_parts(split, share)
    check_part("a test", support)
    assert is_query(query) and not is_query(support)
    for num_batches in range(250):
        batches = range(num_batches)
        inside = [i for i in batches if is_in_part(support, i, num_batches)]
        assert [i for i in batches if not is_in_part(query, i, num_batches)] == inside
        assert 0 <= len(inside) - share * num_batches < 1 + 0.004 * num_batches
        for part, found in ((support, inside), (query, sorted({*batches} - {*inside}))):
            assert count_batches(part, num_batches) == len(found)
            assert [find_batch(part, n, num_batches) for n in range(len(found))] == found
        if split == "skip":  # Neighbours are as far apart as the share says.
            assert all(int(1 / share) <= d <= 1 / share + 1.1 for d in np.diff(inside))


def test_half_has_the_usual_names_and_other_parts_are_refused():
    assert split_parts("skip") == split_parts("skip", 0.5) == SPLITS["skip"]
    assert split_parts("skip", 1 / 3) == ("support 1/3", "query 1/3")
    assert split_parts("shared", 0.3) == ("all", "all")
    for share in (0.0, 1.0, 0.001):
        with pytest.raises(ValueError, match=f"between 0.01 and 0.99, not {share}"):
            split_parts("skip", share)
    for part in ("half", "all 1/3", "support 1/0", "support 4/3", "support 1/3 ", "query x"):
        with pytest.raises(ValueError, match=f"not '{part}'"):
            check_part("a test", part)
