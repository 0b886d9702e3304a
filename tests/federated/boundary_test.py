"""What crosses between server and clients: all of it is listed, and no local variable may."""

from __future__ import annotations

import collections
import json

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.evaluation.evaluate import evaluation_computation
from fedpersonal.federated.boundary import (
    LocalVariableError,
    as_table,
    check_boundary,
    list_crossings,
    total_bytes,
)
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.model.metrics import RATING_METRICS
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm

SGD = build_sgdm(0.1)
ALGORITHM = fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)
NUM_ITEMS = 5
BUILD_MODEL = matrix_factorization(num_items=NUM_ITEMS, embedding_dim=3, use_biases=True)
LOOKUPS = {"item_embedding": "item", "item_bias": "item"}
TABLE_SHAPES = {
    "item_embedding/embeddings": (NUM_ITEMS, 3),
    "item_bias/embeddings": (NUM_ITEMS, 1),
}
TABLE_BYTES = 4 * (NUM_ITEMS * 3 + NUM_ITEMS)
METRICS = ("loss", "rmse", "mae", "accuracy", "num_examples", "num_dropped_updates")


@pytest.fixture(name="model", scope="module")
def _model():
    return PartitionedModel(
        BUILD_MODEL,
        local_layers=["user_embedding", "user_bias"],
        lookups=LOOKUPS,
        metrics=RATING_METRICS,
    )


EXECUTION = Execution(batch_size=4, clients_per_shard=2)


def build(model, algorithm):
    return build_process(model, algorithm, execution=EXECUTION, server_optimizer=SGD).next


def named(crossings, direction):
    """Shapes by the last part of the name, of one direction."""
    found = [(c.name.split(".")[-1], c.shape) for c in crossings if c.direction == direction]
    assert len(dict(found)) == len(found)
    return dict(found)


def test_training_sends_global_variables_alone(model):
    crossings = check_boundary(model, build(model, ALGORITHM))
    sent, returned = named(crossings, "broadcast"), named(crossings, "aggregate")
    assert {name: sent.pop(name) for name in TABLE_SHAPES} == TABLE_SHAPES
    assert list(sent.values()) == [()]  # The round's number, for seeds.
    assert total_bytes(crossings, "broadcast") == TABLE_BYTES + 4

    assert {name: returned.pop(name) for name in TABLE_SHAPES} == TABLE_SHAPES
    # Of each metric the sums of values and of weights.
    metrics = {name: () if name.startswith("num_") else (2,) for name in METRICS}
    metrics["weight"] = ()
    numbers = sum(2 if shape else 1 for shape in metrics.values())
    assert total_bytes(crossings, "aggregate") == TABLE_BYTES + 4 * numbers
    assert returned == metrics
    for crossing in crossings:
        assert "user" not in crossing.name
        size = int(np.prod(crossing.shape)) * np.dtype(crossing.dtype).itemsize
        assert crossing.num_bytes == size


def test_evaluation_sends_global_variables_alone(model):
    computation = evaluation_computation(
        model, ALGORITHM.personalization(model), clients=2, batch_size=4, query_batch_size=3
    )
    crossings = check_boundary(model, computation)
    assert named(crossings, "broadcast") == TABLE_SHAPES
    assert total_bytes(crossings, "broadcast") == TABLE_BYTES
    rows = json.loads(json.dumps(as_table(crossings)))
    assert {
        "direction": "broadcast",
        "name": "item_embedding/embeddings",
        "dtype": "float32",
        "shape": [NUM_ITEMS, 3],
        "num_bytes": 4 * NUM_ITEMS * 3,
    } in rows
    assert total_bytes(crossings, "aggregate") == 0


def test_a_process_that_treats_local_variables_as_global_is_caught(model):
    """The fault: a process is built of the same Keras model, its user layers forgotten."""
    forgetful = PartitionedModel(BUILD_MODEL, lookups=LOOKUPS)
    faulty = build(forgetful, fed_avg(client_optimizer=SGD))
    with pytest.raises(LocalVariableError, match=r"local variable 'user_\w+/vector' is sent"):
        check_boundary(model, faulty)


VECTOR = tff.TensorType(np.float32, [3])
LEAK = tff.to_type(
    collections.OrderedDict(
        [("item_embedding/embeddings", VECTOR), ("user_embedding/vector", VECTOR)]
    )
)


@tff.tf_computation()
def zero():
    names = [name for name, _ in tff.iter_elements(LEAK)]
    return collections.OrderedDict((name, tf.zeros([3])) for name in names)


@tff.tf_computation(LEAK, LEAK)
def add(one, other):
    return tf.nest.map_structure(tf.add, one, other)


@tff.tf_computation(LEAK)
def same(value):
    return value


def weight_of_one():
    return tff.federated_value(1.0, tff.CLIENTS)


AGGREGATIONS = {
    "sum": tff.federated_sum,
    "mean": tff.PACKAGE.federated_mean,
    "weighted mean": lambda value: tff.PACKAGE.federated_mean(
        value, tff.federated_value(1.0, tff.CLIENTS)
    ),
    "aggregate": lambda value: tff.federated_aggregate(value, zero(), add, add, same),
    "max": tff.PACKAGE.federated_max,
    "min": tff.PACKAGE.federated_min,
    "nested": lambda value: tff.federated_sum(
        tff.federated_zip(collections.OrderedDict(deep=collections.OrderedDict(down=value)))
    ),
}


@tff.federated_computation(tff.FederatedType(LEAK, tff.CLIENTS))
def summed(value):
    return tff.federated_sum(value)


INTEGERS = tff.to_type(collections.OrderedDict([("user_embedding/vector", (np.int32, [3]))]))
CLIENTS, SERVER = (tff.FederatedType(LEAK, place) for place in (tff.CLIENTS, tff.SERVER))
# What it is given, what is done with it, and which way it goes.
LEAKS = {
    **{name: (CLIENTS, send, "aggregate") for name, send in AGGREGATIONS.items()},
    "a secure sum": (
        tff.FederatedType(INTEGERS, tff.CLIENTS),
        lambda value: tff.PACKAGE.federated_secure_sum_bitwidth(value, 8),
        "aggregate",
    ),
    "within another computation": (CLIENTS, lambda value: summed(value), "aggregate"),
    "broadcast": (SERVER, tff.federated_broadcast, "broadcast"),
    # What is put at CLIENTS comes from the server.
    "put": (LEAK, lambda value: tff.federated_value(value, tff.CLIENTS), "broadcast"),
}


@pytest.mark.parametrize("kind", LEAKS)
def test_a_local_variable_is_caught_on_its_way(model, kind):
    given, send, direction = LEAKS[kind]

    @tff.federated_computation(given)
    def leak(value):
        return send(value)

    with pytest.raises(LocalVariableError) as caught:
        check_boundary(model, leak)
    message = str(caught.value)
    assert f"'user_embedding/vector' is sent ({direction}, as " in message
    assert "(3,)" in message and "item_embedding/embeddings" in message
    # A name that is declared lets no other through.
    with pytest.raises(LocalVariableError):
        check_boundary(model, leak, declared=["clipped.user_embedding/vector"])


def test_selection_sends_keys_up_and_slices_down():
    """By type alone: keys come from clients, what they select from the server."""

    @tff.tf_computation(LEAK, np.int32)
    def select(value, key):
        del key
        return value

    @tff.federated_computation(
        tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS),
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(LEAK, tff.SERVER),
    )
    def selection(keys, max_key, value):
        return tff.PACKAGE.federated_select(keys, max_key, value, select)

    crossings = [(c.direction, c.name) for c in list_crossings(selection)]
    names = [f"2.{name}" for name, _ in tff.iter_elements(LEAK)]
    assert crossings == [("aggregate", ""), *(("broadcast", n) for n in ("1", *names))]


def test_an_intrinsic_under_another_name_is_seen():
    value = tff.FederatedType(LEAK, tff.CLIENTS)
    summed = tff.FederatedType(LEAK, tff.SERVER)
    intrinsic = tff.Intrinsic("federated_sum", tff.FunctionType(value, summed))
    call = tff.Call(tff.Reference("add", intrinsic.type_signature), tff.Reference("own", value))
    block = tff.Lambda("own", value, tff.Block([("add", intrinsic)], call))

    class Hidden:
        def to_building_block(self):
            return block

    assert [c.name for c in list_crossings(Hidden())] == [
        name for name, _ in tff.iter_elements(LEAK)
    ]


def test_what_stays_with_its_client_is_not_listed():
    @tff.federated_computation(tff.FederatedType(LEAK, tff.CLIENTS))
    def stay(value):
        return tff.federated_map(same, value)

    assert list_crossings(stay) == []
