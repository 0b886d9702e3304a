"""A round of FedRecon with one update step is a step of first-order meta-learning.

Singhal et al., section 4.2: the objective is the query loss at the local variables that
reconstruction leads to; FedRecon descends along its first-order terms, in which these local
variables do not depend on the global ones.
"""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithms.fed_recon import fed_recon
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.process.process import build_process
from fedpersonal.process.shards import Execution, make_cohort

BATCH_SIZE = 4
UPDATE_RATE = 0.05
RECONSTRUCTION_RATE = 0.2
LOCAL_START = np.array([[0.5], [-0.4], [0.3]], np.float32)


@pytest.fixture(name="model", scope="module")
def _model():
    def build_model():
        x = tf.keras.Input([2], name="x")
        hidden = tf.keras.layers.Dense(3, activation="tanh", name="shared")(x)
        start = tf.keras.initializers.Constant(LOCAL_START)
        output = tf.keras.layers.Dense(1, kernel_initializer=start, use_bias=False, name="own")
        return tf.keras.Model({"x": x}, output(hidden))

    return PartitionedModel(build_model, local_layers=["own"])


@pytest.fixture(name="dataset", scope="module")
def _dataset(make_dataset):
    """Two batches a client, the second one partial: a support and a query batch."""
    random = np.random.default_rng(6)
    return make_dataset(
        [
            (
                {"x": random.normal(size=(n, 2)).astype(np.float32)},
                random.normal(size=n).astype(np.float32),
            )
            for n in (8, 5, 7)
        ]
    )


def mean_squared_error(kernel, bias, own, batch):
    x, y = batch
    return tf.reduce_mean((tf.tanh(x @ kernel + bias) @ own - y[:, np.newaxis]) ** 2)


def meta_gradient(start, client, *, steps, first_order):
    """The gradient of f(g || R(support, g)), written out, for the kernel and for the bias."""
    features, labels = client
    support, query = (
        (tf.constant(features["x"][part]), tf.constant(labels[part]))
        for part in (slice(0, BATCH_SIZE), slice(BATCH_SIZE, None))
    )
    shared = [tf.constant(start["shared/kernel"]), tf.constant(start["shared/bias"])]
    own = tf.constant(LOCAL_START)
    with tf.GradientTape() as outer:
        outer.watch(shared)
        for _ in range(steps):
            with tf.GradientTape() as inner:
                inner.watch(own)
                loss = mean_squared_error(*shared, own, support)
            own = own - RECONSTRUCTION_RATE * inner.gradient(loss, own)
        if first_order:
            own = tf.stop_gradient(own)
        loss = mean_squared_error(*shared, own, query)
    return [gradient.numpy() for gradient in outer.gradient(loss, shared)]


@pytest.mark.parametrize(
    ("cohort", "weighting", "shares"),
    [
        ([1], "num_examples", [1.0]),
        ([0, 1, 2], "uniform", [1 / 3, 1 / 3, 1 / 3]),
        # The query sets hold 4, 1 and 3 examples.
        ([0, 1, 2], "num_examples", [1 / 2, 1 / 8, 3 / 8]),
    ],
)
def test_an_update_is_the_first_order_gradient(model, dataset, cohort, weighting, shares):
    steps = 3
    algorithm = fed_recon(
        client_optimizer=tff.learning.optimizers.build_sgdm(UPDATE_RATE),
        reconstruction_optimizer=tff.learning.optimizers.build_sgdm(RECONSTRUCTION_RATE),
        reconstruction_epochs=steps,
        max_local_steps=1,
        weighting=weighting,
    )
    execution = Execution(batch_size=BATCH_SIZE, clients_per_shard=2)
    process = build_process(
        model,
        algorithm,
        execution=execution,
        server_optimizer=tff.learning.optimizers.build_sgdm(1.0),
    )
    state = process.initialize()
    start = dict(state.global_model_weights.trainable)
    cohort_now = make_cohort(model, dataset, cohort, execution=execution)
    end = process.next(state, cohort_now.examples).state.global_model_weights.trainable
    step = [(start[name] - end[name]) / UPDATE_RATE for name in ("shared/kernel", "shared/bias")]

    def mean_gradient(first_order):
        gradients = [
            meta_gradient(start, dataset.client(i), steps=steps, first_order=first_order)
            for i in cohort
        ]
        return [sum(s * part for s, part in zip(shares, parts)) for parts in zip(*gradients)]

    first, second = mean_gradient(True), mean_gradient(False)
    for actual, expected, other in zip(step, first, second):
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-5)
        assert np.abs(actual - other).max() > 0.02
