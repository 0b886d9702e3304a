"""The server's optimizers and their rates."""

from __future__ import annotations

import collections

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.optimizers import SERVER_OPTIMIZERS, build_server_optimizer


def _moves(optimizer, rounds: int) -> list[float]:
    """How far each round moves a weight whose gradient is always 1."""
    state = optimizer.initialize(collections.OrderedDict(a=tf.TensorSpec([1])))
    weights, moves = collections.OrderedDict(a=tf.zeros([1])), []
    for _ in range(rounds):
        before = weights["a"]
        state, weights = optimizer.next(state, weights, collections.OrderedDict(a=tf.ones([1])))
        moves.append(float(before - weights["a"]))
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
