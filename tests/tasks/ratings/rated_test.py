"""What stands beside a rating as what its user has rated."""

from __future__ import annotations

import numpy as np
import pytest

from fedpersonal.data.generated.ratings import generate_ratings
from fedpersonal.tasks.ratings.data import add_rated, split_ratings
from fedpersonal.tasks.ratings.task import TASK

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
