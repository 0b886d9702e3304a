"""Shards hold each client of a cohort once, with its own examples and its own local state."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.federated.cohort import Cohort, Execution, Shard, make_cohort
from fedpersonal.model.partition import PartitionedModel

COUNTS = (4, 9, 1, 6, 3)
PACKED = Execution(batch_size=4, clients_per_shard=2)
ALONE = Execution(batch_size=4)


@pytest.fixture(name="model", scope="module")
def _model():
    def build():
        x = tf.keras.Input([1], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="own")(x))

    return PartitionedModel(build, local_layers=["own"])


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    """A client's number is in all of its examples."""
    return make_dataset(
        [({"x": np.full([n, 1], i, np.float32)}, np.full(n, i)) for i, n in enumerate(COUNTS)]
    )


def labels_of(shard):
    """The sorted labels of each client of a shard."""
    masks = shard.examples["mask"] > 0
    return [labels[mask].tolist() for labels, mask in zip(shard.examples["labels"], masks)]


@pytest.mark.parametrize("execution", [PACKED, ALONE], ids=["many", "alone"])
def test_places_are_those_of_the_examples(model, dataset, execution):
    chosen = [3, 0, 4, 2, 1]
    cohort = make_cohort(model, dataset, chosen, execution=execution)
    assert list(cohort.client_ids) == [f"client{number}" for number in chosen]
    known = np.array([True, False, True, True, True])
    values = {"own/bias": np.array(chosen, np.float32)[:, np.newaxis]}
    seen = []
    for shard, given in zip(cohort.shards, cohort.with_local_state(known, values)):
        local = given["local"]
        assert shard.places.dtype == local["places"].dtype == np.int32
        assert len(shard.places) == execution.clients_per_shard
        for row, (place, labels) in enumerate(zip(shard.places, labels_of(shard))):
            if place < 0:
                assert labels == [] and not local["known"][row]
                continue
            seen.append(place)
            assert labels == [chosen[place]] * COUNTS[chosen[place]]
            assert local["known"][row] == known[place]
            assert local["values"]["own/bias"][row] == chosen[place]
            assert given["examples"] is shard.examples
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_shards_are_of_about_equal_size(model, dataset):
    cohort = make_cohort(model, dataset, range(5), execution=PACKED)
    # By size 9, 6, 4, 3, 1, dealt to three shards.
    assert [shard.places.tolist() for shard in cohort.shards] == [[1, 4], [3, 2], [0, -1]]


@pytest.mark.parametrize("execution", [PACKED, ALONE], ids=["many", "alone"])
def test_clients_that_are_refused(model, dataset, execution):
    with pytest.raises(UserError, match="the cohort names client 'client2' 2 times, not once"):
        make_cohort(model, dataset, [2, 1, 2], execution=execution)
    numbers = np.array(range(5), object)
    with pytest.raises(UserError, match="client_ids must be an array of numbers or of str"):
        make_cohort(
            model, dataclasses.replace(dataset, client_ids=numbers), [3], execution=execution
        )
    with pytest.raises(UserError, match="client 3 must be named by a str"):
        Cohort([3], [Shard(np.zeros([1], np.int32), None)])


@pytest.mark.parametrize("places", [[[0, 1], [1, -1]], [[0, -1], [-1, -1]], [[0, 1], [2, -1]]])
def test_wrong_places_are_refused(places):
    shards = [Shard(np.array(own, np.int32), None) for own in places]
    with pytest.raises(ValueError, match="shards must hold each of 2 clients once, not "):
        Cohort(["a", "b"], shards)
