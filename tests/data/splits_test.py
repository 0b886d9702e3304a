"""Tests of the splits of clients and of examples."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.clients import ClientDataset
from fedpersonal.data.splits import (
    check_num_clients,
    check_query_sets,
    count_query_examples,
    split_clients,
    split_examples,
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(fractions=(0.8, 0.1, 0.2)), r"sum to 1, got \(0.8, 0.1, 0.2\)"),
        (dict(fractions=(1.2, -0.1, -0.1)), "fractions must be three numbers"),
        (dict(fractions=(0.9, 0.1)), "fractions must be three numbers"),
        (dict(fractions=("a", "b", "c")), "fractions must be three numbers"),
        (dict(fractions=(float("nan"), 0.5, 0.5)), "fractions must be three numbers"),
        (dict(seed=-1), "seed must be a whole number >= 0, got -1"),
        (dict(seed=None), "seed .* got None"),
    ],
)
def test_wrong_options_are_refused(options, message):
    options = {"seed": 0, **options}
    with pytest.raises(UserError, match=message):
        split_clients(10, **options)
    with pytest.raises(UserError, match=message):
        split_examples(_make([3]), **options, ordered=False)


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
