"""Copies of tables, cut down to touched rows, against models whose tables are not looked up."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.evaluation.evaluate import build_evaluation
from fedpersonal.evaluation.personalize import personalize
from fedpersonal.methods.algorithm import GradientPhase
from fedpersonal.methods.apfl import apfl
from fedpersonal.methods.ditto import ditto
from fedpersonal.methods.mr_mtl import mr_mtl
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization

NUM_ITEMS, DIM, PULL, BATCH_SIZE = 9, 2, 0.8, 2
SGD = tff.learning.optimizers.build_sgdm(0.3)
ADAM = tff.learning.optimizers.build_adam(0.05)
COPY = "personal_copy/item_embedding/embeddings"
ALGORITHMS = {
    "ditto": ditto(client_optimizer=SGD, pull=PULL),
    # Adam follows a pull at each step: these rows stay together.
    "ditto_adam": ditto(client_optimizer=SGD, local_optimizer=ADAM, pull=PULL),
    "mr_mtl": mr_mtl(client_optimizer=SGD, pull=PULL),
    "apfl": apfl(client_optimizer=SGD),
}


def phases_of(algorithm, model):
    """A user's vector alone, by the shared table; and then its copies."""
    vector = GradientPhase(("user_embedding",), "all", SGD, epochs=2)
    return (vector, *algorithm.personalization(model))


def build(algorithm, *, looks_up):
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, embedding_dim=DIM),
        local_layers=["user_embedding"],
        lookups={"item_embedding": "item"} if looks_up else {},
    )
    return algorithm.prepare(model)


@pytest.fixture(name="clients", scope="module")
def _clients(make_dataset):
    random = np.random.default_rng(3)

    def client(count):
        items = random.integers(0, NUM_ITEMS, count).astype(np.int32)
        return {"item": items}, random.normal(size=count).astype(np.float32)

    return make_dataset([client(count) for count in (5, 3, 1, 6)])


@pytest.fixture(name="weights", scope="module")
def _weights():
    table = np.random.default_rng(4).normal(size=(NUM_ITEMS, DIM)).astype(np.float32)
    return {"item_embedding/embeddings": table}


def kept_of(model, clients):
    """Copies far from what the server sends, of all clients but the last."""
    random = np.random.default_rng(6)
    known = np.arange(clients.num_clients) < clients.num_clients - 1
    return known, {
        v.name: random.uniform(0.1, 0.9, (clients.num_clients, *v.shape)).astype(np.float32)
        for v in model.local_variables
    }


@pytest.mark.parametrize("packing", ["stacked", "pooled"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_evaluation_is_that_of_whole_tables(name, packing, clients, weights):
    losses = {}
    for looks_up in (True, False):
        model = build(ALGORITHMS[name], looks_up=looks_up)
        evaluate = build_evaluation(
            model,
            phases_of(ALGORITHMS[name], model),
            clients,
            clients,
            batch_size=BATCH_SIZE,
            clients=3,
            packing=packing,
            with_kept=True,
        )
        losses[looks_up] = evaluate(weights, kept_of(model, clients)).per_client()
    for column in ("loss_before", "loss_after"):
        np.testing.assert_allclose(losses[True][column], losses[False][column], rtol=1e-5)
    assert (losses[True]["loss_after"] < losses[True]["loss_before"] - 1e-3).any()


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_client_has_all_rows_of_its_copy(name, clients, weights):
    """Among them those that it has not looked up, which its pull has moved."""
    found, own = {}, clients.subset([0])
    for looks_up in (True, False):
        model = build(ALGORITHMS[name], looks_up=looks_up)
        _, kept = kept_of(model, own)
        found[looks_up] = personalize(
            model,
            phases_of(ALGORITHMS[name], model),
            weights,
            own,
            kept={k: v[0] for k, v in kept.items()},
            batch_size=BATCH_SIZE,
        )
    for key, value in found[False].items():
        np.testing.assert_allclose(found[True][key], value, rtol=1e-5, atol=1e-6, err_msg=key)
    untouched = np.setdiff1d(np.arange(NUM_ITEMS), own.features["item"])
    moved = np.abs(found[True][COPY] - kept[COPY][0])[untouched]
    assert untouched.size and (moved.min() > 1e-3) == (name != "apfl")


def test_a_factor_of_a_pull_may_be_none_or_negative(clients, weights):
    """As where rate * lambda is 1, or above."""
    own, random = clients.subset([0]), np.random.default_rng(7)
    untouched = np.setdiff1d(np.arange(NUM_ITEMS), own.features["item"])
    start = random.normal(size=(NUM_ITEMS, DIM)).astype(np.float32)
    for strength in (1.0, 1.6):
        algorithm = ditto(client_optimizer=SGD, pull=strength / 0.3)
        model = build(algorithm, looks_up=True)
        kept = {COPY: start, "user_embedding/vector": np.zeros([1, DIM], np.float32)}
        kept = {v.name: kept.get(v.name, np.zeros(v.shape, "f")) for v in model.local_variables}
        phases = algorithm.personalization(model)
        found = personalize(model, phases, weights, own, kept=kept, batch_size=BATCH_SIZE)[COPY]
        (sent,) = weights.values()
        expected = sent + (1 - strength) ** 3 * (start - sent)
        np.testing.assert_allclose(found[untouched], expected[untouched], rtol=1e-4, atol=1e-5)
    assert tf.reduce_all(tf.math.is_finite(found))
