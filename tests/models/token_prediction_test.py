"""Loss and metrics of token prediction, by hand and against TensorFlow's own."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.models.tokens import (
    count_positions,
    count_tokens,
    sum_cross_entropy,
    token_accuracy,
)

PAD = 0


def loss_and_gradient(loss, labels, logits, upstream):
    logits = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(logits)
        losses = loss(tf.constant(labels), logits)
        total = tf.reduce_sum(losses * upstream)
    return losses.numpy(), tape.gradient(total, logits).numpy()


def tensorflows(labels, logits):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    return tf.reduce_sum(losses * tf.cast(labels != PAD, tf.float32), axis=1)


def kerass(labels, logits):
    losses = tf.keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
    return tf.reduce_sum(tf.where(labels != PAD, losses, 0.0), axis=1)


def draw(*, scale, seed=0, batch=5, time=4, ids=7):
    random = np.random.default_rng(seed)
    logits = (scale * random.normal(size=[batch, time, ids])).astype(np.float32)
    labels = random.integers(1, ids, [batch, time]).astype(np.int32)
    labels[1, 2:] = PAD
    labels[2] = PAD
    return labels, logits, random.normal(size=batch).astype(np.float32)


@pytest.mark.parametrize("reference", [tensorflows, kerass])
@pytest.mark.parametrize("scale", [0.0, 1.0, 100.0, 1e4, 1e30])
def test_value_and_gradient_are_tensorflows_own(reference, scale):
    """At a scale of 1e4 all probabilities but one underflow; where logits tie they are equal."""
    labels, logits, upstream = draw(scale=scale)
    losses, gradient = loss_and_gradient(sum_cross_entropy, labels, logits, upstream)
    expected, expected_gradient = loss_and_gradient(reference, labels, logits, upstream)
    assert np.isfinite(losses).all() and np.isfinite(gradient).all()
    np.testing.assert_allclose(losses, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert losses[2] == 0 and expected[0] > 1


def test_padding_may_be_predicted_too():
    labels, logits, upstream = draw(scale=1.0)
    loss = functools.partial(sum_cross_entropy, with_padding=True)
    losses, gradient = loss_and_gradient(loss, labels, logits, upstream)

    def everywhere(labels, logits):
        own = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        return tf.reduce_sum(own, axis=1)

    expected, expected_gradient = loss_and_gradient(everywhere, labels, logits, upstream)
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected_gradient, rtol=1e-5, atol=1e-6)
    assert count_positions(tf.constant(labels)).numpy().tolist() == [4.0] * 5


def test_a_shift_of_all_logits_changes_nothing():
    labels, logits, upstream = draw(scale=3.0)
    losses, gradient = loss_and_gradient(sum_cross_entropy, labels, logits, upstream)
    for shift in (-5000.0, 5000.0):
        shifted = loss_and_gradient(sum_cross_entropy, labels, logits + shift, upstream)
        np.testing.assert_allclose(shifted[0], losses, rtol=1e-2)
        np.testing.assert_allclose(shifted[1], gradient, atol=1e-2)


def test_padding_is_not_predicted():
    labels, logits, upstream = draw(scale=2.0)
    losses, gradient = loss_and_gradient(sum_cross_entropy, labels, logits, upstream)
    is_padding = labels == PAD
    assert not gradient[is_padding].any() and gradient[~is_padding].any(axis=-1).all()
    logits[is_padding] = 1e3 * np.arange(7)
    others, other_gradient = loss_and_gradient(sum_cross_entropy, labels, logits, upstream)
    np.testing.assert_array_equal(losses, others)
    np.testing.assert_array_equal(gradient, other_gradient)


def test_no_sentence_has_no_loss():
    losses = sum_cross_entropy(tf.zeros([0, 4], tf.int32), tf.zeros([0, 4, 7]))
    assert losses.shape == [0]


def test_a_sentence_counts_as_its_tokens():
    labels = tf.constant([[3, 1, 0, 0], [0, 0, 0, 0], [2, 2, 2, 2], [0, 5, 0, 1]])
    counts = count_tokens(labels)
    assert counts.dtype == tf.float32
    assert counts.numpy().tolist() == [2, 0, 4, 2]


def predicting(tokens, *, ids):
    return tf.one_hot(tf.constant(tokens), ids)


# Padding 0, begin 1, end 2, words 3 and 4, buckets 5 and 6.
LABELS = tf.constant([[3, 5, 4, 2], [6, 3, 2, 0], [0, 0, 0, 0]])
#           right, right, a bucket, right; wrong bucket, right, wrong, of no matter; the same
PREDICTED = [[3, 5, 6, 2], [5, 3, 4, 0], [0, 3, 0, 5]]


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
    logits = predicting(PREDICTED, ids=7)
    values, weights = metric.example_value(LABELS, logits), metric.example_weight(LABELS)
    assert metric.name == "share"
    assert values.dtype == weights.dtype == tf.float32
    assert values.numpy().tolist() == right
    assert weights.numpy().tolist() == counted
    assert metric.finalize(0.25) == 0.25


@pytest.mark.parametrize("form", ["list", "random"])
def test_accuracy_among_known_ids(form):
    """A bucket that is the most likely gives way to the best of the others."""
    if form == "list":
        scores = np.zeros([1, 4, 7], np.float32)
        labels = np.array([[3, 4, 3, 5]], np.int32)
        # Bucket before the right word; right at once; bucket before a wrong word; a bucket.
        for place, (first, second) in enumerate([(6, 3), (4, 5), (5, 4), (5, 6)]):
            scores[0, place, [first, second]] = [2, 1]
        expected = [2]
    else:
        labels, scores, _ = draw(scale=1.0, batch=40)
        right = scores[..., :5].argmax(-1) == labels
        expected = (right & (labels > 0) & (labels < 5)).sum(axis=1).tolist()
        assert (scores.argmax(-1) >= 5).any() and sum(expected) > 10
    options = {"num_known": 5, "among_known": True}
    metric = token_accuracy("among", **options)
    assert metric.example_value(labels, tf.constant(scores)).numpy().tolist() == expected
    without = token_accuracy("without", **options, without=(3,))
    counted = ((labels > 0) & (labels < 5) & (labels != 3)).sum(axis=1)
    assert without.example_weight(labels).numpy().tolist() == counted.tolist()
