"""Optimizers: the server's by name, rates, and Keras' as TFF's."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.client.values import align
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Rebuilding
from fedpersonal.methods.phases import GradientPhase, LookAhead
from fedpersonal.optimizers import (
    SERVER_OPTIMIZERS,
    LinearDecay,
    ScheduledOptimizer,
    as_server_optimizer,
    as_tff_optimizer,
    build_server_optimizer,
)
from fedpersonal.tff.optimizers import build_sgdm, build_yogi


def _moves(optimizer, rounds: int) -> list[float]:
    """How far each round moves a weight whose gradient is always 1."""
    state = optimizer.initialize(collections.OrderedDict(a=tf.TensorSpec([1])))
    weights, moves = collections.OrderedDict(a=tf.zeros([1])), []
    for _ in range(rounds):
        before = weights["a"]
        state, weights = optimizer.next(state, weights, collections.OrderedDict(a=tf.ones([1])))
        moves.append(float((before - weights["a"])[0]))
    return moves


def test_a_rate_falls_in_a_line_and_stays_at_0():
    moves = _moves(build_server_optimizer("sgd", learning_rate=0.8, decay_rounds=4), 6)
    np.testing.assert_allclose(moves, [0.8, 0.6, 0.4, 0.2, 0.0, 0.0], atol=1e-6)


@pytest.mark.parametrize("name", SERVER_OPTIMIZERS)
def test_a_falling_rate_is_a_share_of_the_constant_one(name):
    """Momentum and preconditioners see gradients alone, whatever the rate."""
    constant = _moves(build_server_optimizer(name, learning_rate=0.1), 3)
    falling = _moves(build_server_optimizer(name, learning_rate=0.1, decay_rounds=3), 3)
    np.testing.assert_allclose(falling, np.multiply(constant, [1, 2 / 3, 1 / 3]), rtol=1e-4)


def test_an_unknown_one_is_refused():
    with pytest.raises(ValueError, match="name must be one of .*'sgd'.*, not 'sdg'"):
        build_server_optimizer("sdg", learning_rate=0.1)


KERAS = tf.keras.optimizers


BUILDERS = [
    lambda: KERAS.SGD(0.1, momentum=0.8),
    lambda: KERAS.Adam(0.05, beta_1=0.7, beta_2=0.9, epsilon=1e-2),
    lambda: KERAS.AdamW(0.05, weight_decay=0.3, epsilon=1e-2),
    lambda: KERAS.Adagrad(0.2, initial_accumulator_value=0.4, epsilon=1e-2),
    lambda: KERAS.legacy.SGD(0.1),
]


@pytest.mark.parametrize("build", [*BUILDERS, lambda: build_yogi(0.05)])
def test_a_stack_of_clients_steps_as_each_of_them_alone(build):
    """To the bit, from states of their own: a client takes no step where it has no batch."""
    own, random = as_tff_optimizer(build()), np.random.default_rng(0)
    shapes = {"w": (5,), "b": (), "table": (3, 2)}

    def draw():
        return {n: tf.constant(random.normal(size=s), tf.float32) for n, s in shapes.items()}

    def stack(parts):
        return tf.nest.map_structure(lambda *each: tf.stack(each), *parts)

    clients, gradients = [draw() for _ in range(3)], [draw() for _ in range(3)]
    states = []
    for count, values in enumerate(clients):
        state = own.initialize({n: tf.TensorSpec(s) for n, s in shapes.items()})
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        for _ in range(count):
            state, _ = own.next(state, values, draw())
        states.append(state)
    found = own.next(
        *map(stack, (states, clients, gradients)),
        align=lambda number, weight: align(number, weight.shape.rank),
    )
    expected = stack([own.next(*one) for one in zip(states, clients, gradients)])
    tf.nest.map_structure(np.testing.assert_array_equal, found, expected)


@pytest.mark.parametrize("build", BUILDERS)
def test_steps_are_kerass_own(build):
    keras, random = build(), np.random.default_rng(0)
    own = as_tff_optimizer(keras)
    assert own is as_tff_optimizer(build())
    start = random.normal(size=5).astype(np.float32)
    variable, value = tf.Variable(start), {"w": tf.constant(start)}
    state = own.initialize({"w": tf.TensorSpec([5])})
    for _ in range(5):
        gradient = tf.constant(random.normal(size=5), tf.float32)
        keras.apply_gradients([(gradient, variable)])
        state, value = own.next(state, value, {"w": gradient})
        np.testing.assert_allclose(value["w"], variable, rtol=1e-5, atol=1e-6)


def test_keras_rate_is_that_of_when_a_phase_is_made():
    sgd = KERAS.SGD(0.4)
    first = GradientPhase("all", "all", sgd, optimizers={"a": sgd}, ahead=LookAhead(sgd))
    rebuilding = Rebuilding(sgd, 1)
    sgd.learning_rate = 0.2
    second = GradientPhase("all", "all", sgd)
    made = [first.optimizer, first.optimizers["a"], first.ahead.optimizer]
    made += [rebuilding.phase.optimizer, second.optimizer]
    with tf.Graph().as_default():  # Where no variable can be read.
        rates = [as_tff_optimizer(one).initialize({})["learning_rate"] for one in made]
        scheduled = ScheduledOptimizer(second.optimizer, LinearDecay(4)).initialize({})
    assert rates == pytest.approx([0.4, 0.4, 0.4, 0.4, 0.2])
    assert scheduled["learning_rate"] == pytest.approx(0.2)


def test_schedule_of_a_server_follows_its_rounds():
    scheduled = ScheduledOptimizer(KERAS.SGD(0.8, momentum=0.0), LinearDecay(4))
    moves = _moves(as_server_optimizer(scheduled), 6)
    np.testing.assert_allclose(moves, [0.8, 0.6, 0.4, 0.2, 0.0, 0.0], atol=1e-6)


def test_tffs_own_pass():
    sgd = build_sgdm(0.1)
    assert as_tff_optimizer(sgd) is sgd
    scheduled = ScheduledOptimizer(KERAS.SGD(0.4), LinearDecay(4))
    assert as_tff_optimizer(scheduled) is scheduled
    state = scheduled.at_round(tf.constant(1)).initialize({})
    assert float(state["learning_rate"]) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: KERAS.RMSprop(0.1), "RMSprop has no counterpart.*Give SGD, Adam"),
        (lambda: KERAS.Nadam(0.1), "Nadam has no counterpart"),
        (lambda: KERAS.SGD(0.1, momentum=0.9, nesterov=True), "SGD: nesterov=True has no count"),
        (lambda: KERAS.Adam(0.1, amsgrad=True), "Adam: amsgrad=True has no counterpart"),
        (lambda: KERAS.SGD(0.1, clipnorm=1.0), "SGD: clipnorm=1.0 has no counterpart"),
        (lambda: KERAS.Adam(0.1, weight_decay=0.1), "Adam: weight_decay=0.1 has no counterpart"),
        (
            lambda: KERAS.SGD(KERAS.schedules.ExponentialDecay(0.1, 10, 0.9)),
            "learning rate that changes.*ScheduledOptimizer",
        ),
        (lambda: KERAS.legacy.SGD(0.1, momentum=0.8), "momentum=0.8 .* rows of an embedding"),
        (lambda: KERAS.legacy.Adagrad(0.1, epsilon=0.1), "epsilon=0.1 .* root of the accumulator"),
        (lambda: KERAS.legacy.SGD(lambda: 0.1), "learning rate that changes"),
        (lambda: type("SGD", (KERAS.SGD,), {})(0.1), "SGD is an optimizer of your own"),
        (lambda: 0.1, "0.1 is no optimizer"),
        (lambda: "sgd", "'sgd' is no optimizer"),
    ],
)
def test_optimizers_that_are_refused(build, message):
    with pytest.raises(UserError, match=message):
        GradientPhase("all", "all", build())
