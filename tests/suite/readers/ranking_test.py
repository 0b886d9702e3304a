"""Tests of held-out items and their sampled negatives."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.clients import ClientDataset
from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.ranking import (
    candidates_as_clients,
    candidates_suffix,
    hold_out_candidates,
    sample_unrated,
)

_NUM_ITEMS = 150


@pytest.fixture(scope="module", name="dataset")
def _dataset():
    ratings = generate_ratings(num_users=40, num_items=_NUM_ITEMS, seed=0, max_ratings=50)
    return ratings.to_client_dataset()


def _hold_out(dataset, **options):
    options = {"num_items": _NUM_ITEMS, "seed": 5, "ordered": False, **options}
    remaining, candidates = hold_out_candidates(dataset, **{"rated": dataset, **options})
    return remaining, np.array(candidates)


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


def test_a_client_without_examples_is_refused(dataset):
    emptied = dataset.filter_examples(dataset.example_clients != 7)
    with pytest.raises(UserError, match="client 'user7' has no example"):
        _hold_out(emptied)
    assert _hold_out(emptied.subset(np.flatnonzero(emptied.counts)))[1].shape == (39, 100)


def test_samples_alone_are_those_of_what_is_held_out_in_order(dataset):
    found = np.array(sample_unrated(dataset, num_items=_NUM_ITEMS, seed=5))
    assert found.dtype == np.int32
    assert (found == _hold_out(dataset, ordered=True)[1][:, 1:]).all()


def test_what_a_client_has_rated_elsewhere_is_no_negative(dataset):
    _, candidates = _hold_out(dataset.head(5), rated=dataset)
    for client, (_, *negatives) in enumerate(candidates):
        assert not {*negatives} & {*dataset.client(client)[0]["item"]}


def test_each_client_has_its_own_number_of_negatives():
    counts = np.array([1, 100, 139, 140, 141, 149, 150])
    items = np.concatenate([np.arange(count) for count in counts])
    users = np.repeat(np.arange(len(counts)), counts)
    names = np.array([f"u{n}" for n in range(len(counts))], object)
    offsets = np.append(0, np.cumsum(counts))
    dataset = ClientDataset(names, offsets, {"item": items, "user": users}, items * 0.0)
    _, candidates = hold_out_candidates(
        dataset, rated=dataset, num_items=_NUM_ITEMS, seed=0, ordered=True
    )
    sizes = [100, 51, 12, 11, 0, 0, 0]
    assert [len(own) for own in candidates] == sizes
    assert [own[0] for own in candidates if len(own)] == [0, 99, 138, 139]
    ranked = candidates_as_clients(dataset, candidates)
    assert ranked.counts.tolist() == sizes and ranked.labels.sum() == 4
    assert [ranked.client(n)[1].sum() for n in range(7)] == [1, 1, 1, 1, 0, 0, 0]
    assert (ranked.features["user"] == np.repeat(np.arange(7), sizes)).all()


@pytest.mark.parametrize(
    ("num_rated", "suffix"),
    [
        ([1, 51], ""),
        ([1, 51, 141, 150], ""),
        ([101, 101, 150], "_of_50"),
        ([1, 101], "_of_50_to_100"),
        ([1, 140], "_of_11_to_100"),
        ([150, 150], ""),
    ],
)
def test_names_say_where_there_are_fewer_candidates(num_rated, suffix):
    assert candidates_suffix(np.array(num_rated), _NUM_ITEMS) == suffix
