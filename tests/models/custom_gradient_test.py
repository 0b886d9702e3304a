"""Our custom gradients against TensorFlow's own; graphs that use them are freed."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from fedpersonal.models.next_word import LSTM
from fedpersonal.models.tokens import custom_gradient, sum_cross_entropy


def _tripled(decorate):
    """Squares, with a gradient that is three times the true one."""

    @decorate
    def tripled(x):
        twice = 2.0 * x
        return x * x, lambda upstream: 3.0 * twice * upstream

    return tripled


def _tape(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


def _through_a_function(function, x):
    return _tape(tf.function(lambda z: tf.sin(function(z))), x)


def _through_a_loop(function, x):
    def loop(y):
        return tf.while_loop(lambda z: tf.norm(z) < 9.0, lambda z: [function(z)], [y])[0]

    return _tape(loop, x)


def _mapped(function, x):
    return _tape(lambda y: tf.map_fn(function, y), x)


def _vectorized(function, x):
    return tf.vectorized_map(lambda z: _tape(function, z), x)


def _symbolic(function, x):
    return tf.gradients(function(x), x)[0]


@pytest.mark.parametrize(
    "way", [_tape, _through_a_function, _through_a_loop, _mapped, _vectorized, _symbolic]
)
@pytest.mark.parametrize("in_graph", [True, False])
def test_gradients_are_those_of_tensorflow(way, in_graph):
    if way is _symbolic and not in_graph:
        pytest.skip("it takes a graph")
    x = tf.constant([1.5, -1.25, 2.0])

    def gradient(decorate):
        function = functools.partial(way, _tripled(decorate))
        return tf.function(function)(x) if in_graph else function(x)

    np.testing.assert_array_equal(gradient(custom_gradient), gradient(tf.custom_gradient))
    if way is _tape:
        np.testing.assert_array_equal(gradient(custom_gradient), 6.0 * x)


def _losses(x):
    return sum_cross_entropy(tf.ones(tf.shape(x)[:2], tf.int32), x)


@pytest.mark.parametrize("kind", ["own", "lstm", "loss"])
def test_a_graph_is_freed_with_its_function(kind):
    function = {"own": _tripled(custom_gradient), "lstm": LSTM(2), "loss": _losses}[kind]
    function(tf.zeros([2, 4, 3]))  # A layer makes its variables.
    registered = set(ops.gradient_registry.list())
    run = tf.function(functools.partial(_tape, function), autograph=False)
    graph = weakref.ref(run.get_concrete_function(tf.TensorSpec([2, 4, 3])).graph)
    added = set(ops.gradient_registry.list()) - registered
    assert added
    gc.collect()
    assert np.all(np.isfinite(run(tf.ones([2, 4, 3]))))
    del run, function
    gc.collect()
    assert graph() is None
    assert not added & set(ops.gradient_registry.list())
