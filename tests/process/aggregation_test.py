"""How clients' updates are aggregated: weights, TFF's aggregators, and rows with an owner."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.models.matrix_factorization import matrix_factorization
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

SGD = tff.learning.optimizers.build_sgdm(0.3)
BATCH_SIZE, NUM_ITEMS = 3, 7
COUNTS = (11, 3, 1, 16, 6)
PACKED = Execution(batch_size=BATCH_SIZE, clients_per_shard=3)
PER_CLIENT = Execution(batch_size=BATCH_SIZE)


def close(actual, desired):
    np.testing.assert_allclose(actual, desired, rtol=1e-4, atol=1e-4)


def run(execution, model, algorithm, dataset, clients=range(5), **options):
    """Returns the weights and the metrics after a round."""
    process = build_process(model, algorithm, execution=execution, **options)
    cohort = make_cohort(model, dataset, clients, execution=execution)
    output = process.next(process.initialize(), cohort.examples)
    return dict(output.state.global_model_weights.trainable), output.metrics


def test_an_owned_row_moves_as_if_its_client_was_alone(draw_ratings):
    """An owned row moves by the whole of its owner's update, an item's by its weighted share."""
    ratings = draw_ratings(COUNTS, num_items=4, seed=3)
    model = PartitionedModel(
        matrix_factorization(num_items=NUM_ITEMS, num_users=len(COUNTS), embedding_dim=2),
        lookups={"item_embedding": "item", "user_embedding": "user"},
        owned_tables=["user_embedding"],
    )
    algorithm = fed_avg(client_optimizer=SGD)
    server = tff.learning.optimizers.build_sgdm(1.0)
    start = model.initial_global_values()
    users, items = "user_embedding/embeddings", "item_embedding/embeddings"
    alone = []
    for i in (0, 3):
        weights, _ = run(PACKED, model, algorithm, ratings, [i], server_optimizer=server)
        alone.append(weights)
    together, _ = run(PACKED, model, algorithm, ratings, [0, 3], server_optimizer=server)
    close(together[users][0], alone[0][users][0])
    close(together[users][3], alone[1][users][3])
    assert np.abs(together[users] - start[users])[[0, 3]].min(axis=1).max() > 1e-3
    close(together[users][[1, 2, 4]], start[users][[1, 2, 4]])
    share = COUNTS[0] / (COUNTS[0] + COUNTS[3])
    close(together[items], share * alone[0][items] + (1 - share) * alone[1][items])


def linear_updates(dataset, start, *, rate):
    """Each client's (kernel, bias) minus the start, after an epoch of SGD, in NumPy."""
    updates = []
    for i in range(dataset.num_clients):
        features, labels = dataset.client(i)
        kernel, bias = (start[f"linear/{name}"].astype(np.float64) for name in ("kernel", "bias"))
        for first in range(0, len(labels), BATCH_SIZE):
            x, y = (column[first : first + BATCH_SIZE] for column in (features["x"], labels))
            errors = x @ kernel[:, 0] + bias[0] - y
            kernel = kernel - rate * 2 * (x.T @ errors / len(y))[:, np.newaxis]
            bias = bias - rate * 2 * errors.mean()
        updates.append((kernel - start["linear/kernel"], bias - start["linear/bias"]))
    return updates


@pytest.fixture(name="linear", scope="module")
def _linear(make_dataset):
    """A global linear model and its data."""

    def build_model():
        x = tf.keras.Input([2], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, name="linear")(x))

    random = np.random.default_rng(2)
    dataset = make_dataset(
        [
            (
                {"x": random.normal(size=(n, 2)).astype(np.float32)},
                random.normal(size=n).astype(np.float32),
            )
            for n in COUNTS
        ]
    )
    return PartitionedModel(build_model), dataset


CLIPPING_NORM = 0.2


def total(updates):
    return [sum(parts) for parts in zip(*updates)]


def mean_of_clipped(updates):
    norms = [math.sqrt(sum((part**2).sum() for part in update)) for update in updates]
    assert min(norms) < CLIPPING_NORM < max(norms)
    factors = [min(1.0, CLIPPING_NORM / norm) / len(updates) for norm in norms]
    return total([[f * part for part in update] for f, update in zip(factors, updates)])


@pytest.mark.parametrize(
    ("aggregator", "aggregate"),
    [
        (tff.aggregators.SumFactory(), total),
        (
            tff.aggregators.clipping_factory(
                CLIPPING_NORM, tff.aggregators.UnweightedMeanFactory()
            ),
            mean_of_clipped,
        ),
    ],
    ids=["sum", "clipping"],
)
def test_aggregators_of_tff_are_taken(linear, aggregator, aggregate):
    model, dataset = linear
    algorithm = fed_avg(
        client_optimizer=tff.learning.optimizers.build_sgdm(0.1), weighting="uniform"
    )
    server = tff.learning.optimizers.build_sgdm(0.5)
    weights, _ = run(
        PER_CLIENT, model, algorithm, dataset, server_optimizer=server, aggregator=aggregator
    )
    start = model.initial_global_values()
    kernel, bias = aggregate(linear_updates(dataset, start, rate=0.1))
    close(weights["linear/kernel"], start["linear/kernel"] + 0.5 * kernel)
    close(weights["linear/bias"], start["linear/bias"] + 0.5 * bias)


@pytest.mark.parametrize("weighting", ["num_examples", "uniform"])
def test_mean_is_weighted_as_asked(linear, weighting):
    model, dataset = linear
    algorithm = fed_avg(
        client_optimizer=tff.learning.optimizers.build_sgdm(0.1), weighting=weighting
    )
    server = tff.learning.optimizers.build_sgdm(1.0)
    weights, metrics = run(PACKED, model, algorithm, dataset, server_optimizer=server)
    start = model.initial_global_values()
    shares = COUNTS if weighting == "num_examples" else np.ones(5)
    kernels, _ = zip(*linear_updates(dataset, start, rate=0.1))
    close(weights["linear/kernel"], start["linear/kernel"] + np.average(kernels, 0, shares))
    assert metrics["num_examples"] == sum(COUNTS)


@pytest.mark.parametrize("execution", [PER_CLIENT, PACKED], ids=lambda e: e.kind)
def test_an_unweighted_aggregator_does_not_fit_weights(linear, execution):
    model, _ = linear
    with pytest.raises(UserError, match="SumFactory ignores weights.*weighting='uniform'"):
        build_process(
            model,
            fed_avg(client_optimizer=SGD, weighting="num_examples"),
            execution=execution,
            server_optimizer=SGD,
            aggregator=tff.aggregators.SumFactory(),
        )
