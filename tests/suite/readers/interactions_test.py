"""Leave-one-out, and negatives: what is held out, and what may be drawn."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.readers.interactions import Implicit, Interactions, Negatives, leave_one_out
from fedpersonal.suite.readers.ratings import read_ratings

NUM_USERS, NUM_ITEMS = 30, 60
EVERYBODY = np.arange(NUM_USERS)


@pytest.fixture(name="interactions", scope="module")
def _interactions():
    ratings = generate_ratings(
        num_users=NUM_USERS, num_items=NUM_ITEMS, seed=2, min_ratings=3, max_ratings=30
    )
    return Interactions(**vars(ratings))


@pytest.fixture(name="everything", scope="module")
def _everything(interactions):
    return interactions.to_client_dataset()


@pytest.fixture(name="train", scope="module")
def _train(everything):
    return leave_one_out(everything, seed=0, ordered=True).train


def items_of(dataset, client):
    return dataset.client(client)[0]["item"].tolist()


def test_the_last_one_by_time_is_for_the_test_and_the_one_before_for_validation():
    times = np.array([5, 3, 9, 1, 4, 2, 6, 7])
    ratings = read_table_of(times)
    held_out = leave_one_out(ratings.to_client_dataset(), seed=0, ordered=True)
    names = ratings.item_ids
    # Of a: i3 at 1, i1 at 3, i0 at 5, i2 at 9; of b: i5 at 2, i4 at 4, i6 at 6, i7 at 7.
    assert names[held_out.test].tolist() == ["i2", "i7"]
    assert names[held_out.validation].tolist() == ["i0", "i6"]
    assert [names[items_of(held_out.train, c)].tolist() for c in (0, 1)] == [
        ["i3", "i1"],
        ["i5", "i4"],
    ]


def read_table_of(times):
    from fedpersonal.suite.readers.ratings import number_ratings

    users, items = np.array([*"aaaabbbb"]), np.array([f"i{i}" for i in range(8)])
    return number_ratings(users, items, np.ones(8), times, name="few")


def test_without_times_what_is_held_out_follows_from_the_seed(everything):
    first, same, other = (leave_one_out(everything, seed=s, ordered=False) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.test, same.test)
    assert (first.test != other.test).mean() > 0.5
    last = np.array([items_of(everything, c)[-1] for c in EVERYBODY])
    assert 0 < (first.test != last).mean()
    for client in EVERYBODY:
        kept = items_of(first.train, client)
        held_out = [first.validation[client], first.test[client]]
        assert sorted([*kept, *held_out]) == sorted(items_of(everything, client))


def test_two_interactions_are_too_few(everything):
    few = everything.head(2)
    with pytest.raises(UserError, match="client 'user0' has 2 interactions; at least 3 are needed"):
        leave_one_out(few, seed=0, ordered=True)


def test_a_table_needs_no_ratings_and_says_where_there_are_no_times(tmp_path, interactions):
    path = tmp_path / "clicks.csv"
    path.write_text("user,item\na,x\na,y\nb,x\n")
    clicks = Interactions(**vars(read_ratings(path, rating_column=None)))
    assert clicks.ratings.tolist() == [1, 1, 1]
    assert clicks.summary() == (
        "clicks: 3 interactions of 2 users, 2 items; no times: held-out items are sampled at random"
    )
    assert "by chance" not in interactions.summary()


@pytest.mark.parametrize("per_positive", [4, None])
def test_a_negative_is_no_positive_and_a_held_out_item_is_as_likely_as_any(
    everything, train, per_positive
):
    negatives = Negatives(train, NUM_ITEMS, per_positive, seed=3)
    drawn = Implicit.from_positives(train, negatives)
    times_drawn, times_held_out = 0, 0
    for number in range(1, 20):
        data, _ = drawn.in_round(number, EVERYBODY)
        for client in EVERYBODY:
            (features, labels), positives = data.client(client), items_of(train, client)
            chosen, others = features["item"][labels == 1], features["item"][labels == 0]
            assert sorted(chosen) == sorted(positives)
            assert not set(others) & set(positives)
            assert (features["user"] == client).all()
            if per_positive is None:
                assert sorted([*chosen, *others]) == list(range(NUM_ITEMS))
            else:
                assert len(others) == per_positive * len(positives)
            held_out = set(items_of(everything, client)) - set(positives)
            assert len(held_out) == 2
            times_drawn += len(others) / (NUM_ITEMS - len(positives))
            times_held_out += np.isin(others, list(held_out)).sum() / 2
    assert times_held_out == pytest.approx(times_drawn, rel=0.1)


def test_the_leaking_draw_never_has_what_is_held_out(everything, train):
    drawn = Implicit.from_positives(train, Negatives(everything, NUM_ITEMS, None, seed=3))
    for client in EVERYBODY:
        features, labels = drawn.client(client)
        expected = set(range(NUM_ITEMS)) - set(items_of(everything, client))
        assert set(features["item"][labels == 0]) == expected


def test_each_round_draws_anew_by_the_seed_whoever_takes_part(train):
    drawn = Implicit.from_positives(train, Negatives(train, NUM_ITEMS, 2, seed=3))
    first, places = drawn.in_round(1, EVERYBODY)
    assert places.tolist() == EVERYBODY.tolist()
    alone, _ = drawn.in_round(1, np.array([7]))
    assert alone.client_ids.tolist() == [train.client_ids[7]]
    np.testing.assert_array_equal(items_of(alone, 0), items_of(first, 7))
    other_seed = Implicit.from_positives(train, Negatives(train, NUM_ITEMS, 2, seed=4))
    prints = [d.in_round(n, EVERYBODY)[0].fingerprint() for d, n in ((drawn, 1), (drawn, 2))]
    prints += [other_seed.in_round(1, EVERYBODY)[0].fingerprint(), drawn.fingerprint()]
    assert len(set(prints)) == 4
    np.testing.assert_array_equal(drawn.counts, first.counts)
    # A model without the input `user` gets none in rounds, too.
    bare = dataclasses.replace(drawn, features={"item": drawn.features["item"]})
    assert list(bare.in_round(1, EVERYBODY)[0].features) == ["item"]


def test_a_round_may_have_nobody(train):
    drawn = Implicit.from_positives(train, Negatives(train, NUM_ITEMS, 2, seed=3))
    nobody, places = drawn.in_round(1, np.array([], np.int64))
    assert nobody.num_clients == nobody.num_examples == len(places) == 0


def test_other_data_are_the_same_in_each_round(everything):
    data, indices = everything.in_round(3, np.array([4, 2]))
    assert data is everything and indices.tolist() == [4, 2]


@pytest.mark.parametrize("per_positive", [None, 3])
def test_a_client_with_all_items_has_no_negatives(make_dataset, per_positive):
    everything = make_dataset([({"item": np.arange(4)}, np.ones(4))])
    train = leave_one_out(everything, seed=0, ordered=True).train
    alone = Implicit.from_positives(train, Negatives(everything, 4, per_positive, seed=0))
    assert alone.labels.tolist() == [1, 1] and sorted(alone.features["item"]) == [0, 1]
    others = Implicit.from_positives(train, Negatives(train, 4, per_positive, seed=0))
    assert others.num_examples == (4 if per_positive is None else 8)
