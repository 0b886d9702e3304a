"""Ridge reconstruction solves the normal equations, and refuses models that have none."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.audit.reference import Client, Reference
from fedpersonal.client.ridge import check_linear
from fedpersonal.client.steps import run_phase
from fedpersonal.client.values import starting_values
from fedpersonal.federated.cohort import Execution
from fedpersonal.federated.packing import as_examples, pack_clients
from fedpersonal.federated.process import build_process
from fedpersonal.methods.algorithm import Algorithm, GradientPhase, PersonalCopies, RidgePhase
from fedpersonal.methods.fed_recon import fed_recon
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.factorization import matrix_factorization
from fedpersonal.tasks.ratings.data import add_rated

BATCH_SIZE = 3
NUM_ITEMS = 6
MEAN = 3.0
# Partial batches, a client of one batch (no query set) and one without examples.
COUNTS = (8, 3, 0, 13)
SGD = tff.learning.optimizers.build_sgdm(0.2)


@pytest.fixture(name="ratings", scope="module")
def _ratings(draw_ratings):
    return draw_ratings(COUNTS, num_items=NUM_ITEMS, seed=5)


def factorization(**options):
    return PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS, embedding_dim=2, use_biases=True, mean_rating=MEAN
        ),
        local_layers=["user_embedding", "user_bias"],
        **options,
    )


def weights_of(model):
    random = np.random.default_rng(4)
    return {v.name: random.normal(size=v.shape).astype(np.float32) for v in model.global_variables}


def values_after(model, phases, dataset, weights):
    """Runs phases on all clients and a fifth one that is padding; returns values and rows."""
    packed = pack_clients(model, dataset, range(4), clients_per_shard=5, batch_size=BATCH_SIZE)

    @tf.function(autograph=False)
    def run():
        examples = tf.nest.map_structure(tf.constant, as_examples(model, packed))
        start = {name: tf.constant(value) for name, value in weights.items()}
        values = starting_values(model, start, examples, tf.constant([0, 0]))
        for phase in phases:
            values = run_phase(model, phase, values, examples)
        return values.own

    return {name: value.numpy() for name, value in run().items()}, packed["rows"]


def solved(dataset, client, data, embeddings, biases, *, l2, bias_l2):
    """The client's embedding and bias by the normal equations."""
    features, labels = dataset.client(client)
    batch = np.arange(len(labels)) // BATCH_SIZE
    chosen = {"support": batch % 2 == 0, "query": batch % 2 == 1, "all": batch >= 0}[data]
    items = features["item"][chosen]
    design = np.column_stack([embeddings[items], np.ones(len(items))]).astype(np.float64)
    targets = labels[chosen] - MEAN - biases[items, 0]
    normal = design.T @ design + np.diag([l2, l2, bias_l2])
    return np.linalg.solve(normal, design.T @ targets)


def check(solution, dataset, data, tables, *, l2, bias_l2):
    for client in range(4):
        expected = solved(dataset, client, data, *tables(client), l2=l2, bias_l2=bias_l2)
        np.testing.assert_allclose(
            solution["user_embedding/vector"][client], expected[:2], rtol=1e-4, atol=1e-5
        )
        np.testing.assert_allclose(
            solution["user_bias/vector"][client], expected[2:], rtol=1e-4, atol=1e-5
        )
    for name in ("user_embedding/vector", "user_bias/vector"):
        assert np.abs(solution[name][0]).min() > 0.01
        # No examples: the penalty alone, whose minimum is 0.
        np.testing.assert_array_equal(solution[name][[2, 4]], 0)


def test_what_users_have_rated_is_explained_already(ratings):
    """The solution is of what the bag of rated items leaves."""
    places = 5
    model = PartitionedModel(
        matrix_factorization(
            num_items=NUM_ITEMS,
            embedding_dim=2,
            use_biases=True,
            mean_rating=MEAN,
            rated_places=places,
        ),
        local_layers=["user_embedding", "user_bias"],
    )
    dataset = add_rated(ratings, ratings, places=places)
    weights = weights_of(model)
    phase = RidgePhase(data="all", l2=2.0)
    solution, _ = values_after(model, [phase], dataset, weights)
    for client in np.flatnonzero(dataset.counts):
        features, labels = dataset.client(client)
        count = features["num_rated"][0]
        bag = weights["rated_embedding/embeddings"][features["rated"][0, :count]].sum(0)
        rows = weights["item_embedding/embeddings"][features["item"]].astype(np.float64)
        left = labels - MEAN - weights["item_bias/embeddings"][features["item"], 0]
        left = left - rows @ (bag / np.sqrt(count))
        design = np.column_stack([rows, np.ones(len(rows))])
        normal = design.T @ design + 2 * np.eye(3)
        expected = np.linalg.solve(normal, design.T @ left)
        found = [solution[f"user_{kind}/vector"][client] for kind in ("embedding", "bias")]
        np.testing.assert_allclose(np.concatenate(found), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("lookups", [{}, {"item_embedding": "item", "item_bias": "item"}])
@pytest.mark.parametrize(("data", "bias_l2"), [("support", 0.3), ("query", None), ("all", 0.3)])
def test_solves_the_normal_equations(ratings, lookups, data, bias_l2):
    model = factorization(lookups=lookups)
    weights = weights_of(model)
    phase = RidgePhase(data=data, l2=2.0, bias_l2=bias_l2)
    solution, _ = values_after(model, [phase], ratings, weights)
    tables = weights["item_embedding/embeddings"], weights["item_bias/embeddings"]
    check(
        solution,
        ratings,
        data,
        lambda client: tables,
        l2=2.0,
        bias_l2=2.0 if bias_l2 is None else bias_l2,
    )


def test_solves_with_the_rows_that_a_client_has_moved(ratings):
    model = factorization(lookups={"item_embedding": "item", "item_bias": "item"})
    weights = weights_of(model)
    names = ("item_embedding/embeddings", "item_bias/embeddings")
    phases = [
        GradientPhase(variables="global", data="all", optimizer=SGD),
        RidgePhase(data="support", l2=2.0, bias_l2=0.3),
    ]
    values, rows = values_after(model, phases, ratings, weights)

    def tables(client):
        moved = [weights[name].copy() for name in names]
        for table, name in zip(moved, names):
            # Rows are padded with row 0, behind those in use.
            table[rows[name][client][::-1]] = values[name][client][::-1]
        return moved

    assert np.abs(tables(0)[0] - weights[names[0]]).max() > 0.01
    check(values, ratings, "support", tables, l2=2.0, bias_l2=0.3)


def test_the_reference_solves_for_no_copies_either(ratings):
    """What an audit compares with, of a client that also trains copies of global variables."""
    algorithm = Algorithm(
        "both",
        (RidgePhase(data="all", l2=2.0), GradientPhase("personal", "all", SGD)),
        local_variables="rebuilt",
        personal=PersonalCopies(("item_embedding",)),
    )
    model = algorithm.prepare(factorization())
    weights = weights_of(model)
    values, _ = values_after(model, algorithm.phases, ratings, weights)
    reference = Reference(model, algorithm, batch_size=BATCH_SIZE, seed=0)
    client = Client(*ratings.client(0))
    reference.run(weights, reference.fresh_local_values(client, 0), client, 0)
    assert "personal_copy/item_embedding/embeddings" in values
    for variable in model.local_variables:
        expected = reference._variables[variable.name].numpy()
        np.testing.assert_allclose(values[variable.name][0], expected, rtol=1e-4, atol=1e-5)


def dense_model(*, units=1, local=("own",), activation=None, use_bias=False):
    def build_model():
        x = tf.keras.Input([3], name="x")
        shared = tf.keras.layers.Dense(4, activation="tanh", use_bias=use_bias, name="shared")(x)
        own = tf.keras.layers.Dense(units, activation=activation, use_bias=use_bias, name="own")(
            shared
        )
        output = tf.keras.layers.Dense(units, use_bias=False, name="last")(own)
        return tf.keras.Model({"x": x}, output)

    return PartitionedModel(build_model, local_layers=local)


def test_solves_for_the_weights_of_a_layer(make_dataset):
    """A local kernel between global layers."""
    model = dense_model()
    random = np.random.default_rng(8)
    x = random.normal(size=(7, 3)).astype(np.float32)
    y = random.normal(size=7).astype(np.float32)
    nothing = ({"x": x[:0]}, y[:0])
    dataset = make_dataset([({"x": x}, y), nothing, nothing, nothing])
    weights = weights_of(model)
    solution, _ = values_after(model, [RidgePhase(data="all", l2=0.5)], dataset, weights)
    hidden = np.tanh(x @ weights["shared/kernel"])
    design = hidden * weights["last/kernel"][0, 0]
    expected = np.linalg.solve(design.T @ design + 0.5 * np.eye(4), design.T @ y)
    np.testing.assert_allclose(solution["own/kernel"][0, :, 0], expected, rtol=1e-4)


def test_linear_models_are_taken():
    check_linear(factorization())
    check_linear(dense_model())
    check_linear(dense_model(use_bias=True))


def test_a_model_is_checked_once_and_built_once_for_it():
    built = []

    def build_model():
        built.append(1)
        return tf.keras.Sequential([tf.keras.Input([3]), tf.keras.layers.Dense(1, name="own")])

    model = PartitionedModel(build_model, local_layers=["own"])
    for check in (lambda m: find_mixing(m, training=False), check_linear):
        built.clear()
        check(model)
        check(model)
        assert len(built) == 1


@pytest.mark.parametrize("use_bias", [True, False])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_nonlinear_model_is_refused(activation, use_bias):
    model = dense_model(activation=activation, use_bias=use_bias)
    with pytest.raises(ValueError, match="ridge reconstruction needs a model that is linear"):
        check_linear(model)


def test_a_product_of_local_variables_is_refused():
    with pytest.raises(ValueError, match="ridge.*linear in its local variables.*own/kernel"):
        check_linear(dense_model(local=["own", "last"]))


def test_two_outputs_are_refused():
    with pytest.raises(ValueError, match=r"ridge.*one output an example.*\(1, 2\)"):
        check_linear(dense_model(units=2))


def test_a_model_without_local_variables_is_refused():
    with pytest.raises(ValueError, match="ridge reconstruction needs local variables"):
        check_linear(dense_model(local=[]))


def test_training_refuses_at_once():
    with pytest.raises(ValueError, match="ridge reconstruction needs a model that is linear"):
        build_process(
            dense_model(activation="tanh"),
            fed_recon(client_optimizer=SGD, reconstruction="ridge"),
            execution=Execution(batch_size=3, clients_per_shard=2),
            server_optimizer=SGD,
        )


@pytest.mark.parametrize("option", ["l2", "bias_l2"])
def test_penalties_are_positive(option):
    with pytest.raises(ValueError, match=f"{option} must be positive, not 0"):
        RidgePhase(**{"data": "all", "l2": 1.0, option: 0.0})
