"""Models with Dropout: every execution draws alike, from the run's seed, round and client."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, GradientPhase
from fedpersonal.algorithms.fed_avg import fed_avg
from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

LAYERS = tf.keras.layers
SGD = tf.keras.optimizers.SGD(0.1)
COUNTS = [5, 8, 3]


def build_model(rate=0.3):
    x = tf.keras.Input([3], name="x")
    hidden = LAYERS.Dense(4, name="body")(LAYERS.Dropout(rate)(x))
    return tf.keras.Model({"x": x}, LAYERS.Dense(1, name="head")(LAYERS.GaussianNoise(0.1)(hidden)))


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    random = np.random.default_rng(0)
    return make_dataset(
        [
            ({"x": random.normal(size=[n, 3]).astype(np.float32)}, random.normal(size=n))
            for n in COUNTS
        ]
    )


def run(how, local, dataset, *, batch_size=3, rounds=2, state=None):
    """Returns the state after some rounds, the weights, and each round's loss."""
    model = PartitionedModel(build_model, local_layers=["head"] if local else [])
    if local:
        algorithm = fed_recon(client_optimizer=SGD, reconstruction_optimizer=SGD)
    else:
        algorithm = fed_avg(client_optimizer=SGD)
    execution = Execution(batch_size=batch_size)
    if how != "per_client":
        execution = Execution(batch_size=batch_size, clients_per_shard=2, packing=how)
    process = build_process(model, algorithm, execution=execution, server_optimizer=SGD, seed=3)
    cohort = make_cohort(model, dataset, [2, 1, 0], execution=execution)
    state, losses = state or process.initialize(), []
    for _ in range(rounds):
        output = process.next(state, cohort.examples)
        state = output.state
        losses.append(output.metrics["loss"])
    return state, dict(state.global_model_weights.trainable), losses


@pytest.mark.parametrize(("local", "batch_size"), [(True, 3), (False, 8)])
def test_executions_draw_alike(dataset, local, batch_size):
    """Batches of 8 hold all that a client has: pooled, such clients take one step together."""
    _, expected, losses = run("per_client", local, dataset, batch_size=batch_size)
    for execution in ("stacked", "pooled"):
        _, weights, own_losses = run(execution, local, dataset, batch_size=batch_size)
        np.testing.assert_allclose(own_losses, losses, rtol=1e-5)
        for name, value in weights.items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-6)


def test_steps_draw_anew(dataset):
    """Weights stay where they are, so only what is dropped differs between passes."""
    model, still = PartitionedModel(build_model), tff.learning.optimizers.build_sgdm(0.0)

    def loss(epochs):
        phase = GradientPhase("all", "all", still, epochs=epochs)
        algorithm, execution = (
            Algorithm("still", (phase,), "none"),
            Execution(batch_size=5),
        )
        process = build_process(model, algorithm, execution=execution, server_optimizer=SGD)
        cohort = make_cohort(model, dataset, [0], execution=execution)
        return process.next(process.initialize(), cohort.examples).metrics["loss"]

    assert abs(loss(2) / loss(1) - 1) > 1e-3


def test_a_resumed_run_is_equal_to_the_bit(dataset):
    _, weights, losses = run("stacked", True, dataset)
    middle, _, first = run("stacked", True, dataset, rounds=1)
    _, resumed, second = run("stacked", True, dataset, rounds=1, state=middle)
    assert losses == first + second and losses[0] != losses[1]
    for name, value in weights.items():
        np.testing.assert_array_equal(resumed[name], value)
