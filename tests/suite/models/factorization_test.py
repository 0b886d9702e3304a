"""Predictions of SVD++ and of a network, and steps of FedNCF and FedRAP, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.audit.plain_model import Client
from fedpersonal.audit.reference import Reference
from fedpersonal.methods.furl import furl
from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.suite.models.factorization import matrix_factorization
from fedpersonal.tff.optimizers import build_sgdm

ITEM = np.array([4, 0, 2], np.int32)
USER = np.array([1, 1, 0], np.int32)
RATED = np.array([[3, 1, 4], [3, 0, 0], [2, 2, 2]], np.int32)
# The last user has rated nothing.
NUM_RATED = np.array([3, 1, 0], np.int32)


def build(*hidden_units):
    return matrix_factorization(
        num_items=5,
        num_users=2,
        embedding_dim=2,
        use_biases=True,
        rated_places=3,
        hidden_units=hidden_units,
        mean_rating=3.0,
    )


def layers(of, number):
    """The kernels and biases of so many hidden layers, and of the last one."""
    names = [*(f"hidden_{n}" for n in range(1, number + 1)), "score"]
    return [(of[f"{name}/kernel"], of[f"{name}/bias"]) for name in names]


def score(vectors, network):
    """What a network makes of rows, (batch,), and the inputs of its layers."""
    inputs = [vectors]
    for kernel, bias in network[:-1]:
        inputs.append(np.maximum(inputs[-1] @ kernel + bias, 0))
    kernel, bias = network[-1]
    return (inputs[-1] @ kernel + bias)[:, 0], inputs


@pytest.mark.parametrize("hidden_units", [(), (4, 3)])
def test_a_prediction_is_numpys(hidden_units):
    """What a user has rated adds to its embedding."""
    model = build(*hidden_units)()
    random = np.random.default_rng(0)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    of = {w.name.split(":")[0]: w.numpy() for w in model.weights}
    table = {name.split("/")[0]: w for name, w in of.items() if name.endswith("/embeddings")}
    found = model({"item": ITEM, "user": USER, "rated": RATED, "num_rated": NUM_RATED}).numpy()
    for row, (item, user, count) in enumerate(zip(ITEM, USER, NUM_RATED)):
        bag = table["rated_embedding"][RATED[row, :count]].sum(0) / np.sqrt(max(count, 1))
        first, second = table["user_embedding"][user] + bag, table["item_embedding"][item]
        expected = first @ second
        if hidden_units:
            both = np.concatenate([first, second])[np.newaxis]
            (expected,), _ = score(both, layers(of, len(hidden_units)))
        expected += 3 + table["user_bias"][user, 0] + table["item_bias"][item, 0]
        assert found[row] == pytest.approx(expected, rel=1e-5)


RATE, OWN_RATE, LABELS = 0.3, 0.7, np.array([1, 0, 1], np.float32)


def a_step(local_layers, **options):
    """What a client was sent and had, and its step by the plain round."""
    model = PartitionedModel(
        matrix_factorization(num_items=5, embedding_dim=2, **options),
        local_layers=local_layers,
        loss=tf.keras.losses.BinaryCrossentropy(from_logits=True),
    )
    sgd, own_sgd = (build_sgdm(r) for r in (RATE, OWN_RATE))
    algorithm = furl(client_optimizer=sgd, local_optimizer=own_sgd)
    reference = Reference(algorithm.prepare(model), algorithm, batch_size=3, seed=0)
    client, random = Client({"item": ITEM}, LABELS), np.random.default_rng(1)
    sent = {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.global_variables}
    own = {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.local_variables}
    return sent, own, reference.run(sent, own, client, 0)


def test_a_step_of_fedrap_is_numpys():
    """The sum of both tables is scored; they are driven apart, and the shared one to 0."""
    difference, sparsity, table = 0.2, 0.3, "own/embeddings"
    sent, own, found = a_step(
        ["user_embedding", "own"],
        per_client_items="own",
        item_difference=difference,
        item_sparsity=sparsity,
    )
    vector = own["user_embedding/vector"]
    shared, mine = sent["item_embedding/embeddings"][ITEM], own[table][ITEM]
    slopes = (1 / (1 + np.exp(-(shared + mine) @ vector)) - LABELS)[:, np.newaxis] / 3
    apart = 2 * difference * (mine - shared) / 3
    of_shared, of_mine = np.zeros((5, 2)), np.zeros((5, 2))
    np.add.at(of_shared, ITEM, slopes * vector + apart + sparsity * np.sign(shared) / 3)
    np.add.at(of_mine, ITEM, slopes * vector - apart)
    (update,) = found.updates.values()
    np.testing.assert_allclose(update, RATE * of_shared, 1e-4, 1e-5)
    np.testing.assert_allclose(found.kept[table], own[table] - OWN_RATE * of_mine, 1e-4, 1e-5)
    moved = vector - OWN_RATE * (slopes * (shared + mine)).sum(0)
    np.testing.assert_allclose(found.kept["user_embedding/vector"], moved, 1e-4, 1e-5)


def test_a_step_of_fedncf_is_numpys():
    """A client moves its own vector at a rate, and the items and the network at another."""
    sent, own, found = a_step(["user_embedding"], hidden_units=(4, 3))
    ((name, vector),) = own.items()
    network = layers(sent, 2)
    rows = np.concatenate([np.tile(vector, (3, 1)), sent["item_embedding/embeddings"][ITEM]], 1)
    scores, inputs = score(rows, network)
    slopes, expected = (1 / (1 + np.exp(-scores)) - LABELS)[:, np.newaxis] / 3, {}
    for layer, into, (kernel, _) in zip(
        ("score", "hidden_2", "hidden_1"), inputs[::-1], network[::-1]
    ):
        expected[f"{layer}/kernel"], expected[f"{layer}/bias"] = into.T @ slopes, slopes.sum(0)
        slopes = slopes @ kernel.T * ((into > 0) | (layer == "hidden_1"))
    table = expected["item_embedding/embeddings"] = np.zeros((5, 2))
    np.add.at(table, ITEM, slopes[:, 2:])
    assert found.updates.keys() == expected.keys()
    for key, slope in expected.items():
        assert np.abs(slope).max() > 1e-3
        np.testing.assert_allclose(found.updates[key], RATE * slope, 1e-4, 1e-5, err_msg=key)
    moved = vector - OWN_RATE * slopes[:, :2].sum(0)
    np.testing.assert_allclose(found.kept[name], moved, 1e-4, 1e-5)


def test_it_starts_as_the_model_without():
    """So `rated_embedding` is zeros, and it is a table of which rows in use suffice."""
    assert not build()().get_layer("rated_embedding").get_weights()[0].any()
    tables = {"item_embedding": "item", "item_bias": "item", "rated_embedding": "rated"}
    check_lookups(PartitionedModel(build(), lookups=tables))
