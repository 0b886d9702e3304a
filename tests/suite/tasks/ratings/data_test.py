"""Who trains on which ratings, and what stands beside them: nothing tested has been trained on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fedpersonal.errors import UserError
from fedpersonal.suite.readers.generated.ratings import generate_ratings
from fedpersonal.suite.tasks.ratings.data import add_rated, split_ratings
from fedpersonal.suite.tasks.ratings.task import TASK

NUM_USERS, NUM_ITEMS, BATCH_SIZE = 43, 60, 5


@pytest.fixture(name="ratings", scope="module")
def _ratings():
    return generate_ratings(
        num_users=NUM_USERS, num_items=NUM_ITEMS, min_ratings=3, max_ratings=50, seed=1
    )


def split(ratings, evaluate_on, **options):
    return split_ratings(
        ratings,
        TASK.options(evaluate_on=evaluate_on, **{"client_batch_size": BATCH_SIZE, **options}),
    )


def candidates_of(part):
    """The items that each client ranks, the held-out one first, a list a client."""
    query = part.ranking.query
    assert part.ranking.seen == part.seen
    np.testing.assert_array_equal(query.counts > 10, part.query.counts > 0 if part.seen else True)
    np.testing.assert_array_equal(query.client_ids, part.query.client_ids)
    return [query.client(n)[0]["item"].tolist() for n in range(query.num_clients)]


def pairs(dataset):
    """The (user, item) of every example."""
    return set(zip(dataset.features["user"].tolist(), dataset.features["item"].tolist()))


def everything(ratings):
    return set(zip(ratings.users.tolist(), ratings.items.tolist()))


def times(ratings, dataset):
    """When each example of a dataset was rated."""
    when = dict(zip(zip(ratings.users, ratings.items), ratings.times))
    keys = zip(dataset.features["user"], dataset.features["item"])
    return np.array([when[key] for key in keys])


def test_unseen_users_are_in_one_part_each(ratings):
    data = split(ratings, "unseen")
    train, validation, test = (
        set(clients.client_ids) for clients in (data.train, data.validation.query, data.test.query)
    )
    assert not data.validation.seen and not data.test.seen
    assert len(train) == 34 and len(validation) == 5 and len(test) == 4
    assert train | validation | test == set(ratings.user_ids)
    assert not train & validation and not train & test and not validation & test
    assert (data.num_users, data.num_items, data.name) == (NUM_USERS, NUM_ITEMS, "synthetic")
    parts = [data.train]
    for part in (data.validation, data.test):
        np.testing.assert_array_equal(part.support.client_ids, part.query.client_ids)
        assert not pairs(part.support) & pairs(part.query)
        parts += [part.support, part.query]
    assert sum(part.num_examples for part in parts) == len(ratings.ratings)
    assert set().union(*map(pairs, parts)) == everything(ratings)


def test_unseen_users_support_and_query_alternate_by_batches(ratings):
    test = split(ratings, "unseen").test
    for client in range(test.query.num_clients):
        user = np.flatnonzero(ratings.user_ids == test.query.client_ids[client])[0]
        rated = ratings.items[ratings.users == user]
        batch = np.arange(len(rated)) // BATCH_SIZE
        support, query = (part.client(client)[0]["item"] for part in (test.support, test.query))
        np.testing.assert_array_equal(support, rated[batch % 2 == 0])
        np.testing.assert_array_equal(query, rated[batch % 2 == 1])


def test_unseen_users_are_ranked_by_their_last_item(ratings):
    test = split(ratings, "unseen").test
    for client, candidates in enumerate(candidates_of(test)):
        user = np.flatnonzero(ratings.user_ids == test.query.client_ids[client])[0]
        rated = ratings.items[ratings.users == user]
        assert candidates[0] == rated[-1]
        assert not set(candidates[1:]) & set(rated)
        assert len(set(candidates)) == len(candidates)
        np.testing.assert_array_equal(test.ranking.support.client(client)[0]["item"], rated[:-1])


def test_seen_users_train_on_the_past_and_are_tested_on_the_future(ratings):
    data = split(ratings, "seen", max_ratings_per_user=0)
    parts = [pairs(d) for d in (data.train, data.validation.query, data.test.query)]
    assert set().union(*parts) == everything(ratings)
    assert sum(map(len, parts)) == len(ratings.ratings)
    shares = [len(part) / len(ratings.ratings) for part in parts]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.03)
    assert data.train.num_clients == NUM_USERS
    for later in (data.validation.query, data.test.query):
        when = times(ratings, later)
        for client, client_id in enumerate(later.client_ids):
            place = np.flatnonzero(data.train.client_ids == client_id)[0]
            trained = times(ratings, data.train)[slice(*data.train.offsets[place : place + 2])]
            held_out = when[slice(*later.offsets[client : client + 2])]
            assert (trained.max() < held_out).all()
    last = dict(zip(data.test.query.features["user"], times(ratings, data.test.query)))
    validated = data.validation.query
    for user, when in zip(validated.features["user"], times(ratings, validated)):
        assert user not in last or when < last[user]


def test_seen_users_rebuild_from_what_they_trained_on(ratings):
    data = split(ratings, "seen", max_ratings_per_user=0)
    for part in (data.validation, data.test):
        # Of ten ratings and more, one is held out; all users are there.
        np.testing.assert_array_equal(part.query.client_ids, data.train.client_ids)
        assert part.query.counts[part.support.counts >= 8].min() >= 1
        np.testing.assert_array_equal(part.support.client_ids, part.query.client_ids)
        assert pairs(part.support) <= pairs(data.train)
        assert not pairs(part.support) & pairs(part.query)
        assert part.seen and part.ranking.support is part.support


def test_seen_users_are_ranked_by_the_last_item_of_the_part(ratings):
    data = split(ratings, "seen")
    for part in (data.validation, data.test):
        for client, candidates in enumerate(candidates_of(part)):
            features, _ = part.query.client(client)
            assert bool(candidates) == bool(len(features["item"]))
            if not candidates:
                continue
            rated = ratings.items[ratings.users == features["user"][0]]
            assert candidates[0] == features["item"][-1]
            assert not set(candidates[1:]) & set(rated)


def test_random_parts_where_there_is_no_time(ratings):
    timeless = dataclasses.replace(ratings, times=None)
    data = split(timeless, "seen", max_ratings_per_user=0)
    assert not pairs(data.train) & pairs(data.test.query)
    assert pairs(data.test.query) != pairs(split(ratings, "seen").test.query)
    other = split(timeless, "seen", seed=1)
    assert pairs(data.test.query) != pairs(other.test.query)


def test_parts_may_be_random_though_there_is_time(ratings):
    random = split(ratings, "seen", max_ratings_per_user=0, split_by="random")
    timeless = split(dataclasses.replace(ratings, times=None), "seen", max_ratings_per_user=0)
    assert pairs(random.test.query) == pairs(timeless.test.query)
    by_time = split(ratings, "seen", split_by="time")
    assert pairs(by_time.test.query) == pairs(split(ratings, "seen").test.query)
    held_out = [
        candidates_of(split(ratings, "unseen", split_by=s).test) for s in ("time", "random")
    ]
    assert held_out[0] != held_out[1]
    with pytest.raises(UserError, match="--split_by=time: synthetic has no times here"):
        split(dataclasses.replace(ratings, times=None), "seen", split_by="time")


def test_draws_are_of_test_clients_with_a_query_set(ratings):
    options = {"test_draws": 40, "clients_per_draw": 2}
    test = split(ratings, "unseen", **options).test
    assert test.client_samples.shape == (40, 2)
    assert all(len(set(clients)) == 2 for clients in test.client_samples.tolist())
    assert len(np.unique(np.sort(test.client_samples), axis=0)) > 1
    again, other = (split(ratings, "unseen", **options, seed=n).test.client_samples for n in (0, 1))
    assert (again == test.client_samples).all() and (other != test.client_samples).any()
    few = split(ratings, "unseen", test_draws=2, client_batch_size=12).test
    tested = np.flatnonzero(few.query.counts > 0)
    assert few.query.num_clients > len(tested)
    assert np.sort(few.client_samples).tolist() == [tested.tolist()] * 2
    assert len(split(ratings, "unseen").test.client_samples) == 0


def test_the_share_of_an_unseen_users_support_set(ratings):
    test = split(ratings, "unseen", support_share=0.8).test
    batches = -(-(test.support.counts + test.query.counts) // BATCH_SIZE)
    supporting = -(-test.support.counts // BATCH_SIZE)
    assert supporting.tolist() == np.ceil(0.8 * batches).astype(int).tolist()


def test_a_users_first_ratings_are_kept(ratings):
    unseen = split(ratings, "unseen", max_ratings_per_user=7)
    parts = (unseen.train, unseen.test.support, unseen.test.query)
    assert [part.counts.max() for part in parts] == [7, 5, 2]
    assert times(ratings, unseen.train).max() < 7 * 60
    seen = split(ratings, "seen", max_ratings_per_user=7)
    assert seen.train.counts.max() == 7
    # The tests are the same whatever is trained on.
    whole = split(ratings, "seen", max_ratings_per_user=0)
    assert pairs(seen.test.query) == pairs(whole.test.query)


@pytest.mark.parametrize("evaluate_on", ["unseen", "seen"])
def test_the_seed_decides(ratings, evaluate_on):
    one, same, other = (split(ratings, evaluate_on, seed=seed) for seed in (3, 3, 4))
    assert pairs(one.test.query) == pairs(same.test.query)
    first, again, others = (candidates_of(data.test) for data in (one, same, other))
    assert first == again != others


def test_ninety_nine_negatives_where_there_are_enough():
    plenty = generate_ratings(num_users=20, num_items=300, max_ratings=30, seed=0)
    data = split(plenty, "unseen")
    assert [len(own) for own in candidates_of(data.test)] == [100, 100]
    assert data.source.candidates_suffix == ""


def test_what_is_beyond_a_users_first_ratings_is_no_negative(ratings):
    test = split(ratings, "unseen", max_ratings_per_user=3).test
    for client, candidates in enumerate(candidates_of(test)):
        user = np.flatnonzero(ratings.user_ids == test.query.client_ids[client])[0]
        assert not set(candidates[1:]) & set(ratings.items[ratings.users == user])


def test_few_users_are_refused():
    few = generate_ratings(num_users=9, num_items=30, min_ratings=5, max_ratings=20, seed=0)
    with pytest.raises(UserError, match="synthetic has 9 users; at least 10 are needed"):
        split(few, "unseen")


OPTIONS = TASK.options(client_batch_size=5, rated_items=7, use_biases=True)


@pytest.fixture(name="data", scope="module")
def _data():
    ratings = generate_ratings(num_users=40, num_items=60, min_ratings=3, max_ratings=50, seed=5)
    return split_ratings(ratings, OPTIONS)


@pytest.fixture(name="model", scope="module")
def _model(data):
    return TASK.build(TASK.sizes(data), OPTIONS).model


def rated(dataset):
    """The items beside each rating, and whose they are."""
    features = dataset.features
    named = [set(row[:n]) for row, n in zip(features["rated"], features["num_rated"])]
    return list(zip(dataset.example_clients.tolist(), named))


def items_of(dataset, client):
    return set(dataset.client(client)[0]["item"].tolist())


def test_all_of_few_and_as_many_as_fit_of_many(data):
    found = add_rated(data.train, data.train, places=7)
    for client, named in rated(found):
        own = items_of(data.train, client)
        assert named <= own and len(named) == min(len(own), 7)
    assert {min(n, 7) for n in data.train.counts.tolist()} == {3, 4, 5, 6, 7}


def test_places_that_do_not_count_name_nothing_else(data):
    """So whoever looks at what a client looks up sees no item that it has not rated."""
    features = add_rated(data.train, data.train, places=60).features
    assert features["rated"].dtype == features["num_rated"].dtype == np.int32
    after = np.arange(60) >= features["num_rated"][:, np.newaxis]
    assert after.any()
    np.testing.assert_array_equal(
        np.where(after, features["rated"], features["rated"][:, :1]),
        np.broadcast_to(features["rated"][:, :1], after.shape),
    )


def test_who_else_is_there_does_not_matter(data):
    """Else a user would be known by others in training than in evaluation."""
    whole = add_rated(data.train, data.train, places=7)
    some = data.train.subset([30, 4, 17])
    found = add_rated(some, some, places=7)
    for place, client in enumerate([30, 4, 17]):
        for name in ("rated", "num_rated"):
            expected = whole.client(client)[0][name]
            np.testing.assert_array_equal(found.client(place)[0][name], expected)


def test_of_other_clients_nothing_is_known(data):
    with pytest.raises(ValueError, match="must have the same clients"):
        add_rated(data.train, data.train.subset([4, 17]), places=7)


def test_a_rating_more_changes_one_place_at_most(data):
    shorter = data.train.head(int(data.train.counts.max()) - 1)
    known = [dict(rated(add_rated(own, own, places=7))) for own in (data.train, shorter)]
    cut = np.flatnonzero(data.train.counts != shorter.counts)
    assert len(cut) and all(len(known[0][i] - known[1][i]) <= 1 for i in cut.tolist())


def test_what_is_chosen_is_one_a_user_and_of_all_that_it_has_rated(data):
    found = add_rated(data.train, data.train, places=7)
    by_user = {}
    for client, named in rated(found):
        assert by_user.setdefault(client, named) == named
    # Not the first ones of each.
    many = np.flatnonzero(data.train.counts > 20)
    first = [set(data.train.client(i)[0]["item"][:7].tolist()) for i in many]
    assert len(many) > 3 and not any(by_user[i] == f for i, f in zip(many, first))


def test_an_evaluated_user_is_known_by_its_support_set_alone(data, model):
    """What is predicted, or ranked, must not be beside itself."""
    for part in (data.test, data.test.ranking):
        for dataset in TASK.for_evaluation(model, part):
            for client, named in rated(dataset):
                assert named <= items_of(part.support, client)
        query = TASK.for_evaluation(model, part)[1]
        items = query.features["item"].tolist()
        assert not any(item in named for item, (_, named) in zip(items, rated(query)))


def test_a_user_without_a_support_set_is_known_by_nothing(data):
    support = data.test.support
    nobody = support.head(0)
    found = add_rated(data.test.query, nobody, places=4)
    assert not found.features["num_rated"].any() and not found.features["rated"].any()


def test_only_a_model_that_asks_has_the_inputs(data, model):
    assert "rated" in TASK.training_clients(model, data.train, OPTIONS).features
    options = OPTIONS.replace(rated_items=0)
    plain = TASK.build(TASK.sizes(data), options).model
    assert set(TASK.training_clients(plain, data.train, options).features) == {"item"}
    assert set(TASK.for_evaluation(plain, data.test)[1].features) == {"item"}
