"""Loss and metrics of token prediction; custom gradients, whose graphs are freed."""

from __future__ import annotations

import functools
import gc
import weakref

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

from fedpersonal.suite.models.next_word import LSTM
from fedpersonal.suite.models.tokens import (
    PAD,
    count_positions,
    count_tokens,
    custom_gradient,
    sum_cross_entropy,
    token_accuracy,
)


def loss_and_gradient(loss, labels, logits, upstream):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = loss(tf.constant(labels), logits)
        total = tf.reduce_sum(losses * upstream)
    return losses.numpy(), tape.gradient(total, logits).numpy()


def tensorflows(labels, logits, with_padding=False):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    counted = tf.cast(with_padding | (labels != PAD), tf.float32)
    return tf.reduce_sum(losses * counted, axis=1)


def draw(*, scale, batch=5, time=4, ids=7):
    random = np.random.default_rng(0)
    logits = (scale * random.normal(size=[batch, time, ids])).astype(np.float32)
    labels = random.integers(1, ids, [batch, time]).astype(np.int32)
    labels[1, 2:] = PAD
    labels[2] = PAD
    return labels, logits, random.normal(size=batch).astype(np.float32)


@pytest.mark.parametrize("with_padding", [False, True])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4, 1e30])
def test_value_and_gradient_are_tensorflows_own(with_padding, scale):
    """At a scale of 1e4 all probabilities but one underflow; where logits tie they are equal."""
    labels, logits, upstream = draw(scale=scale)
    (losses, gradient), (expected, expected_gradient) = (
        loss_and_gradient(
            functools.partial(loss, with_padding=with_padding), labels, logits, upstream
        )
        for loss in (sum_cross_entropy, tensorflows)
    )
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert (losses[2] == 0) != with_padding and expected[0] > 1
    counts = (count_positions if with_padding else count_tokens)(tf.constant(labels))
    assert counts.numpy().tolist() == ([4] * 5 if with_padding else [4, 2, 0, 4, 4])


def test_a_shift_of_all_logits_changes_nothing():
    labels, logits, upstream = draw(scale=3.0)
    losses, gradient = loss_and_gradient(sum_cross_entropy, labels, logits, upstream)
    for shift in (-5000.0, 5000.0):
        shifted = loss_and_gradient(sum_cross_entropy, labels, logits + shift, upstream)
        np.testing.assert_allclose(shifted[0], losses, rtol=1e-2)
        np.testing.assert_allclose(shifted[1], gradient, atol=1e-2)
    assert sum_cross_entropy(tf.zeros([0, 4], tf.int32), tf.zeros([0, 4, 7])).shape == [0]


# Padding 0, begin 1, end 2, words 3 and 4, buckets 5 and 6.
LABELS = tf.constant([[3, 5, 4, 2], [6, 3, 2, 0], [0, 0, 0, 0]])
#           right, right, a bucket, right; wrong bucket, right, wrong, of no matter; the same
PREDICTED = tf.constant([[3, 5, 6, 2], [5, 3, 4, 0], [0, 3, 0, 5]])


@pytest.mark.parametrize(
    ("options", "right", "counted"),
    [
        ({}, [3, 1, 0], [4, 3, 0]),
        ({"num_known": 5}, [2, 1, 0], [3, 2, 0]),
        ({"num_known": 5, "without": (2,)}, [1, 1, 0], [2, 1, 0]),
        ({"without": (2, 3)}, [1, 0, 0], [2, 1, 0]),
        ({"num_known": 7}, [3, 1, 0], [4, 3, 0]),
    ],
)
def test_accuracy_by_hand(options, right, counted):
    metric = token_accuracy("share", **options)
    values = metric.example_value(LABELS, tf.one_hot(PREDICTED, 7))
    weights = metric.example_weight(LABELS)
    assert metric.name == "share" and metric.finalize(0.25) == 0.25
    assert values.dtype == weights.dtype == tf.float32
    assert (values.numpy().tolist(), weights.numpy().tolist()) == (right, counted)


def test_accuracy_among_known_ids():
    """A bucket that is the most likely gives way to the best of the others."""
    labels, scores, _ = draw(scale=1.0, batch=40)
    is_word = (labels > 0) & (labels < 5)
    expected = (is_word & (scores[..., :5].argmax(-1) == labels)).sum(axis=1)
    assert (scores.argmax(-1) >= 5).any() and expected.sum() > 10
    metric = token_accuracy("among", num_known=5, among_known=True)
    found = metric.example_value(labels, tf.constant(scores)).numpy()
    assert found.tolist() == expected.tolist()


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


def _through_a_loop(function, x):
    def loop(y):
        return tf.while_loop(lambda z: tf.norm(z) < 9.0, lambda z: [function(z)], [y])[0]

    return _tape(loop, x)


WAYS = {
    "tape": _tape,
    "function": lambda function, x: _tape(tf.function(lambda z: tf.sin(function(z))), x),
    "loop": _through_a_loop,
    "vectorized": lambda function, x: tf.vectorized_map(lambda z: _tape(function, z), x),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("in_graph", [True, False])
def test_gradients_are_those_of_tensorflow(way, in_graph):
    x = tf.constant([1.5, -1.25, 2.0])

    def gradient(decorate):
        function = functools.partial(WAYS[way], _tripled(decorate))
        return tf.function(function)(x) if in_graph else function(x)

    np.testing.assert_array_equal(gradient(custom_gradient), gradient(tf.custom_gradient))
    if way == "tape":
        np.testing.assert_array_equal(gradient(custom_gradient), 6.0 * x)


def _losses(x):
    return sum_cross_entropy(tf.ones(tf.shape(x)[:2], tf.int32), x)


@pytest.mark.exhaustive(but=("loss",))
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
