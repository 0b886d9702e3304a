"""Who trains on what, and what is ranked: nothing that is held out is trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.interactions import Interactions
from fedpersonal.suite.readers.ratings import keep_users
from fedpersonal.suite.tasks.ranking.data import split_interactions
from fedpersonal.suite.tasks.ranking.task import TASK

NUM_USERS, NUM_ITEMS = 25, 160


@pytest.fixture(name="interactions", scope="module")
def _interactions():
    ratings = generate_ratings(
        num_users=NUM_USERS, num_items=NUM_ITEMS, seed=1, min_ratings=5, max_ratings=50
    )
    return Interactions(**vars(ratings))


def split(interactions, **options):
    return split_interactions(interactions, TASK.options(**options))


def pairs(dataset):
    """The (client, item) of every example."""
    names = dataset.client_ids[dataset.example_clients]
    return set(zip(names.tolist(), dataset.features["item"].tolist()))


def candidates_of(part):
    return part.query.features["item"].reshape(part.query.num_clients, -1)


def test_a_held_out_item_comes_last_and_is_ranked_among_99_never_chosen(interactions):
    data = split(interactions)
    everything = interactions.to_client_dataset()
    trained = pairs(data.train.positives)
    for part, place in ((data.test, 1), (data.validation, 2)):
        candidates = candidates_of(part)
        assert candidates.shape == (NUM_USERS, 100) and part.seen
        last = everything.features["item"][everything.offsets[1:] - place]
        np.testing.assert_array_equal(candidates[:, 0], last)
        labels = part.query.labels.reshape(NUM_USERS, 100)
        assert (labels[:, 0] == 1).all() and not labels[:, 1:].any()
        for client, own in zip(everything.client_ids.tolist(), candidates):
            assert len(set(own)) == 100
            chosen = {item for name, item in pairs(everything) if name == client}
            assert not chosen & {*own[1:].tolist()}
            assert (client, own[0]) not in trained
    assert len(trained) == everything.num_examples - 2 * NUM_USERS
    tested, validated = candidates_of(data.test), candidates_of(data.validation)
    assert (np.sort(tested[:, 1:]) != np.sort(validated[:, 1:])).any(1).all()


@pytest.mark.parametrize("leaky", [False, True])
def test_what_is_held_out_may_be_a_negative_unless_it_leaks(interactions, leaky):
    data = split(interactions, leaky_negatives=leaky, support_negatives=0)
    held_out = pairs(interactions.to_client_dataset()) - pairs(data.train.positives)
    support = data.test.support
    drawn = pairs(support.filter_examples(support.labels == 0))
    assert not drawn & pairs(data.train.positives)
    assert drawn & held_out == (set() if leaky else held_out)


@pytest.mark.parametrize("leaky", [False, True])
def test_over_rounds_a_held_out_item_is_a_negative_as_often_as_any_other(interactions, leaky):
    """And never if it is asked to leak. The chances are those of this seed."""
    data = split(interactions, leaky_negatives=leaky, seed=3)
    everybody, positives = np.arange(NUM_USERS), data.train.positives
    times = np.zeros([NUM_USERS, NUM_ITEMS])
    for number in range(60):
        drawn, _ = data.train.in_round(number, everybody)
        negatives = drawn.filter_examples(drawn.labels == 0)
        np.add.at(times, (negatives.example_clients, negatives.features["item"]), 1)
    may_be = np.ones([NUM_USERS, NUM_ITEMS], bool)
    may_be[positives.example_clients, positives.features["item"]] = False
    held_out = np.zeros_like(may_be)
    for part in (data.test, data.validation):
        held_out[everybody, candidates_of(part)[:, 0]] = True
    assert held_out.sum() == 2 * NUM_USERS and not times[~may_be].any()
    if leaky:
        assert not times[held_out].any()
        may_be &= ~held_out
    expected = (times.sum(1) / may_be.sum(1))[:, np.newaxis] * may_be
    for items in [may_be] if leaky else [held_out, may_be]:
        # As of Poisson draws, to three standard deviations: the sum, and Pearson's chi-square.
        assert abs((times - expected)[items].sum()) < 3 * expected[items].sum() ** 0.5
        chi_square, count = ((times - expected)[items] ** 2 / expected[items]).sum(), items.sum()
        assert abs(chi_square - count) < 3 * (2 * count) ** 0.5


def test_support_sets_are_what_clients_train_on_unless_other_negatives_are_asked_for(interactions):
    data = split(interactions)
    assert data.test.support is data.validation.support is data.train
    more = split(interactions, support_negatives=6)
    assert (more.test.support.counts == 7 * more.train.positives.counts).all()
    assert (more.train.counts == 5 * more.train.positives.counts).all()


def test_without_times_a_seed_holds_out_others(interactions):
    bare = dataclasses.replace(interactions, times=None)
    first, same, other = (split(bare, seed=seed) for seed in (0, 0, 1))
    assert first.train.fingerprint() == same.train.fingerprint()
    held_out = [candidates_of(data.test)[:, 0] for data in (first, other, split(interactions))]
    assert (held_out[0] != held_out[1]).mean() > 0.5
    assert (held_out[0] != held_out[2]).mean() > 0.5


def test_a_small_catalogue_has_fewer_candidates(interactions):
    columns = ("users", "items", "times", "ratings")
    few = {name: getattr(interactions, name)[interactions.items < 60] for name in columns}
    small = keep_users(dataclasses.replace(interactions, **few), min_ratings=3)
    data, left = split(small), len(small.item_ids) - np.bincount(small.users)
    for part in (data.test, data.validation):
        assert part.query.counts.tolist() == (1 + np.minimum(left, 99)).tolist()
    assert data.source.candidates_suffix == f"_of_{1 + left.min()}_to_{1 + left.max()}"


def with_user(interactions, num_items):
    """Adds a user who has chosen the first so many items."""
    new = {
        "users": np.full(num_items, len(interactions.user_ids), np.int32),
        "items": np.arange(num_items, dtype=np.int32),
        "ratings": np.ones(num_items, np.float32),
        "times": np.arange(num_items),
        "user_ids": np.array(["anna"], object),
    }
    joined = {name: np.append(getattr(interactions, name), value) for name, value in new.items()}
    return dataclasses.replace(interactions, **joined)


@pytest.mark.parametrize("leaky", [False, True])
@pytest.mark.parametrize("left", [0, 1, 9, 10])
def test_a_user_with_nearly_all_items_takes_nothing_from_the_others(interactions, left, leaky):
    extended = split(with_user(interactions, NUM_ITEMS - left), leaky_negatives=leaky)
    alone = split(interactions, leaky_negatives=leaky)
    for part, other in ((extended.test, alone.test), (extended.validation, alone.validation)):
        *counts, of_anna = part.query.counts.tolist()
        assert counts == other.query.counts.tolist() == [100] * NUM_USERS
        assert of_anna == (11 if left == 10 else 0)
        np.testing.assert_array_equal(
            part.query.features["item"][: other.query.num_examples], other.query.features["item"]
        )
    assert extended.source.candidates_suffix == ("_of_11_to_100" if left == 10 else "")


def test_a_catalogue_in_which_nobody_can_be_ranked_is_refused(interactions):
    everything = with_user(
        dataclasses.replace(
            interactions,
            users=np.empty(0, np.int32),
            items=np.empty(0, np.int32),
            ratings=np.empty(0, np.float32),
            times=np.empty(0, np.int64),
            user_ids=np.empty(0, object),
            item_ids=np.array([*"abcd"], object),
        ),
        4,
    )
    with pytest.raises(UserError, match="no user has left 10 of the 4 items unchosen, so there is"):
        split(everything)
