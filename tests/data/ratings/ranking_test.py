"""Tests of held-out items and their sampled negatives."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.data.ratings.ranking import hold_out_candidates, sample_unrated
from fedpersonal.errors import UserError

_NUM_ITEMS = 150


@pytest.fixture(scope="module", name="dataset")
def _dataset():
    ratings = generate_ratings(num_users=40, num_items=_NUM_ITEMS, seed=0, max_ratings=50)
    return ratings.to_client_dataset()


def _hold_out(dataset, **options):
    options = {"num_items": _NUM_ITEMS, "num_negatives": 99, "seed": 5, "ordered": False, **options}
    return hold_out_candidates(dataset, **options)


@pytest.mark.parametrize("ordered", [True, False])
def test_candidates(dataset, ordered):
    remaining, candidates = _hold_out(dataset, ordered=ordered)
    assert candidates.shape == (40, 100)
    assert candidates.dtype == np.int32
    assert remaining.client_ids.tolist() == dataset.client_ids.tolist()
    for client, (held_out, *negatives) in enumerate(candidates):
        rated = dataset.client(client)[0]["item"].tolist()
        kept = remaining.client(client)[0]["item"].tolist()
        if ordered:
            assert rated == [*kept, held_out]
        assert kept == [item for item in rated if item != held_out]
        assert len(kept) == len(rated) - 1
        assert len(set(negatives)) == 99
        assert not set(negatives) & set(rated)
        assert set(negatives) <= set(range(_NUM_ITEMS))


def test_random_is_random_and_seeded(dataset):
    _, candidates = _hold_out(dataset)
    assert (candidates == _hold_out(dataset)[1]).all()
    assert (candidates[:, 0] != _hold_out(dataset, seed=6)[1][:, 0]).any()
    assert (candidates[:, 0] != _hold_out(dataset, ordered=True)[1][:, 0]).any()
    # Clients of the same items would still differ, by their names.
    assert len({tuple(row[1:11]) for row in candidates}) == 40


@pytest.mark.parametrize("ordered", [True, False])
def test_a_client_gets_the_same_in_any_company(dataset, ordered):
    chosen = [17, 3, 29]
    remaining, candidates = _hold_out(dataset, ordered=ordered)
    remaining_few, few = _hold_out(dataset.subset(chosen), ordered=ordered)
    assert (few == candidates[chosen]).all()
    assert (remaining_few.labels == remaining.subset(chosen).labels).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_negatives=131), r"client 'user\d+' has \d+ unrated items of 150, too few"),
        (dict(num_items=5), r"items must be in \[0, num_items=5\), got \d+"),
        (dict(num_negatives=-1), "num_negatives must be a whole number >= 0, got -1"),
        (dict(seed=0.5), "seed .* got 0.5"),
    ],
)
def test_wrong_options_are_refused(dataset, options, message):
    with pytest.raises(UserError, match=message):
        _hold_out(dataset, **options)


def test_a_client_without_examples_is_refused(dataset):
    emptied = dataset.filter_examples(dataset.example_clients != 7)
    with pytest.raises(UserError, match="client 'user7' has no example"):
        _hold_out(emptied)
    assert _hold_out(emptied.subset(np.flatnonzero(emptied.counts)))[1].shape == (39, 100)


def test_samples_alone_are_those_of_what_is_held_out_in_order(dataset):
    found = sample_unrated(dataset, num_items=_NUM_ITEMS, num_negatives=7, seed=5)
    assert found.dtype == np.int32
    assert (found == _hold_out(dataset, num_negatives=7, ordered=True)[1][:, 1:]).all()
