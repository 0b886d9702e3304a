"""Learning rates that fall from round to round."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.federated.cohort import Execution, make_cohort
from fedpersonal.federated.process import build_process
from fedpersonal.methods.fed_avg import fed_avg
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers import LinearDecay, ScheduledOptimizer

OPTIMIZERS = {
    "sgd": tff.learning.optimizers.build_sgdm,
    "momentum": lambda rate: tff.learning.optimizers.build_sgdm(rate, momentum=0.9),
    "adam": tff.learning.optimizers.build_adam,
}
SERVER = tff.learning.optimizers.build_sgdm(1.0)


def test_rates_fall_in_a_line_and_stay_at_the_end():
    decay = LinearDecay(4, end=0.2)
    shares = [float(decay(tf.constant(number))) for number in range(6)]
    np.testing.assert_allclose(shares, [1.0, 0.8, 0.6, 0.4, 0.2, 0.2], rtol=1e-6)


@pytest.mark.parametrize("options", [{"total_rounds": 0}, {"total_rounds": 3, "end": 1.5}])
def test_what_makes_no_line_is_refused(options):
    with pytest.raises(ValueError, match="LinearDecay: "):
        LinearDecay(**options)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_optimizer_is_one_of_another_rate(name):
    weights = collections.OrderedDict(a=tf.constant([1.0, -2.0]))
    gradients = collections.OrderedDict(a=tf.constant([0.5, 0.25]))
    moved = []
    for optimizer in (
        ScheduledOptimizer(OPTIMIZERS[name](0.4), LinearDecay(4)).at_round(tf.constant(3)),
        OPTIMIZERS[name](0.1),
    ):
        state, new = optimizer.initialize({"a": tf.TensorSpec([2])}), weights
        for _ in range(2):
            state, new = optimizer.next(state, new, gradients)
        moved.append(new["a"])
    np.testing.assert_allclose(*moved, rtol=1e-6)
    assert np.abs(moved[0] - weights["a"]).min() > 0.01


@pytest.mark.parametrize("packing", ["stacked", "pooled", None])
def test_a_round_has_the_rates_of_its_number(make_dataset, packing):
    """The first of two rounds at the full rate, the second at half of it."""

    def build():
        x = tf.keras.Input([2], name="x")
        return tf.keras.Model({"x": x}, tf.keras.layers.Dense(1, use_bias=False, name="out")(x))

    model = PartitionedModel(build)
    x = np.array([[1, 2], [3, -1], [2, 2]], np.float32)
    y = np.array([1, -1, 2], np.float32)
    dataset = make_dataset([({"x": x}, y)])
    algorithm = fed_avg(client_optimizer=ScheduledOptimizer(OPTIMIZERS["sgd"](0.1), LinearDecay(2)))
    execution = Execution(batch_size=3)
    if packing:
        execution = Execution(batch_size=3, clients_per_shard=1, packing=packing)
    process = build_process(model, algorithm, execution=execution, server_optimizer=SERVER)
    cohort = make_cohort(model, dataset, [0], execution=execution).examples
    state = process.initialize()
    expected = model.initial_global_values()["out/kernel"]
    for rate in (0.1, 0.05):
        state = process.next(state, cohort).state
        errors = (x @ expected)[:, 0] - y
        expected = expected - rate * (2 / 3) * (x.T @ errors)[:, np.newaxis]
        actual = state.global_model_weights.trainable["out/kernel"]
        np.testing.assert_allclose(actual, expected, rtol=1e-5)
