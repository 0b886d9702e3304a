"""Splits of clients and of examples; support and query parts."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import (
    SPLITS,
    check_num_clients,
    check_part,
    check_query_sets,
    count_batches,
    count_query_examples,
    find_batch,
    is_in_part,
    is_query,
    split_clients,
    split_examples,
    split_parts,
    split_support_query,
)
from fedpersonal.errors import UserError


def _make(counts) -> ClientDataset:
    """Clients named by their number, with examples labelled by their row."""
    n = sum(counts)
    return ClientDataset(
        client_ids=np.array([str(i) for i in range(len(counts))], object),
        offsets=np.concatenate([[0], np.cumsum(counts)]),
        features={"x": np.arange(n)},
        labels=np.arange(n),
    )


def test_split_clients():
    parts = split_clients(6040, seed=3)
    assert [part.size for part in parts] == [4832, 604, 604]
    assert sorted(np.concatenate(parts)) == list(range(6040))
    again, other = split_clients(6040, seed=3), split_clients(6040, seed=4)
    assert all((a == b).all() for a, b in zip(parts, again))
    assert not np.array_equal(parts[0], other[0])
    assert not (np.diff(parts[0]) > 0).all()
    assert [part.size for part in split_clients(3, fractions=(1, 0, 0), seed=0)] == [3, 0, 0]
    assert [part.size for part in split_clients(0, seed=0)] == [0, 0, 0]


def test_ordered_split_takes_the_last():
    train, validation, test = split_examples(_make([10, 20]), seed=0, ordered=True)
    assert train.labels.tolist() == [*range(8), *range(10, 26)]
    assert validation.labels.tolist() == [8, 26, 27]
    assert test.labels.tolist() == [9, 28, 29]
    assert test.offsets.tolist() == [0, 1, 3]


def test_random_split_takes_as_many_but_others():
    dataset = _make([10] * 200)
    ordered = split_examples(dataset, seed=0, ordered=True)
    parts = split_examples(dataset, seed=0, ordered=False)
    assert all((a.counts == b.counts).all() for a, b in zip(parts, ordered))
    assert sorted(np.concatenate([part.labels for part in parts])) == list(range(2000))
    for part in parts:
        assert (part.labels // 10 == part.example_clients).all()
        assert (np.diff(part.labels) > 0).all()
    # Every place is the test example of about a tenth of the clients.
    places = np.bincount(parts[2].labels % 10, minlength=10)
    assert places.min() > 5 and places.max() < 40
    again = split_examples(dataset, seed=0, ordered=False)
    other = split_examples(dataset, seed=1, ordered=False)
    assert (again[2].labels == parts[2].labels).all()
    assert (other[2].labels != parts[2].labels).any()


@pytest.mark.parametrize("fractions", [(0.8, 0.1, 0.1), (0.5, 0.25, 0.25), (0, 0.5, 0.5)])
@pytest.mark.parametrize("ordered", [True, False])
def test_every_client_keeps_a_train_example(fractions, ordered):
    counts = list(range(30))
    parts = split_examples(_make(counts), fractions=fractions, seed=0, ordered=ordered)
    train, validation, test = (part.counts for part in parts)
    assert (train + validation + test).tolist() == counts
    assert (train >= np.minimum(counts, 1)).all()
    for count, in_validation, in_test in zip(counts, validation, test):
        assert in_test == max(0, min(count - 1, int(count * fractions[2] + 0.5)))
        rest = max(0, count - 1 - in_test)
        assert in_validation == min(rest, int(count * fractions[1] + 0.5))


@pytest.mark.parametrize("split", ["skip", "aggregated"])
def test_query_examples_are_those_of_the_query_sets(split):
    dataset = _make([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])
    support, query = split_support_query(dataset, batch_size=2, split=split)
    counts = count_query_examples(dataset, batch_size=2, split=split)
    assert counts.tolist() == query.counts.tolist()
    assert (support.counts + query.counts).tolist() == dataset.counts.tolist()
    assert (
        counts.tolist()
        == {
            "skip": [0, 0, 0, 1, 2, 2, 2, 3, 4, 4],
            "aggregated": [0, 0, 0, 1, 2, 1, 2, 3, 4, 3],
        }[split]
    )
    shared = count_query_examples(dataset, batch_size=2, split="shared")
    assert shared.tolist() == dataset.counts.tolist()


def test_the_share_of_the_support_set():
    dataset = _make([12, 3, 0])
    support, query = split_support_query(dataset, batch_size=2, support_share=1 / 3)
    assert [support.counts.tolist(), query.counts.tolist()] == [[4, 2, 0], [8, 1, 0]]
    half, _ = split_support_query(dataset, batch_size=2, support_share=0.5)
    assert half.counts.tolist() == [6, 2, 0]
    first, _ = split_support_query(dataset, batch_size=2, split="aggregated", support_share=0.8)
    assert first.counts.tolist() == [10, 3, 0]
    assert count_query_examples(dataset, batch_size=2, support_share=0.8).tolist() == [2, 0, 0]


def test_what_cannot_be_split_is_told():
    dataset = _make([5, 3])
    check_query_sets("birds", dataset, batch_size=4)
    check_query_sets("birds", dataset, batch_size=5, split="shared")
    with pytest.raises(UserError, match="no client of birds has a second batch, .* one has are 5"):
        check_query_sets("birds", dataset, batch_size=5)
    check_num_clients("birds", 10, minimum=10)
    with pytest.raises(UserError, match="^birds has 9 users; at least 10 are .* out. Wait!$"):
        check_num_clients("birds", 9, minimum=10, advice="Wait!")


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


@pytest.mark.parametrize("as_values", [np.array, tf.constant], ids=["numpy", "tensorflow"])
@pytest.mark.parametrize("part", EXPECTED)
def test_parts_of_arrays_of_clients(part, as_values):
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
