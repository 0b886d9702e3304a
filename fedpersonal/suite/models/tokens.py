"""Loss and metrics of predicting tokens, without padding. A sentence's weight is its tokens."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable

import tensorflow as tf
from tensorflow.python.framework import ops

from fedpersonal.model.metrics import Metric

Gradient = Callable[..., "tf.Tensor | tuple[tf.Tensor, ...]"]


def custom_gradient(
    function: Callable[..., tuple[tf.Tensor, Gradient]],
) -> Callable[..., tf.Tensor]:
    """Does what `tf.custom_gradient` does, but lets the graph be freed after use.

    TensorFlow registers the gradient of each call in a graph until the process ends, and the
    gradient refers to the graph. A program that traces one model after another would keep all
    graphs in memory.

    Args:
        function: Returns one tensor and the function of its gradient.
    """

    @functools.wraps(function)
    def call(*arguments: tf.Tensor) -> tf.Tensor:
        result = tf.custom_gradient(function)(*arguments)
        if not tf.executing_eagerly():
            _leave_to_graph(result)
        return result

    return call


def _leave_to_graph(result: tf.Tensor) -> None:
    """Makes a graph keep its tensor's gradient, and TensorFlow's registry refer to it weakly."""
    name = result.op.get_attr("_gradient_op_type").decode()
    registered = ops.gradient_registry._registry
    gradient = registered[name]["type"]
    graph = result.graph
    graph._custom_gradients = [*getattr(graph, "_custom_gradients", ()), gradient]
    registered[name]["type"] = functools.partial(_call, weakref.ref(gradient))
    weakref.finalize(gradient, registered.pop, name, None).atexit = False


def _call(gradient: weakref.ref[Gradient], *arguments: object) -> object:
    function = gradient()
    assert function is not None  # Else its name would no longer be registered.
    return function(*arguments)


PAD = 0


def count_tokens(labels: tf.Tensor) -> tf.Tensor:
    """Maps labels (batch, time) to the number of tokens without padding, float32 (batch,)."""
    return count(tf.not_equal(labels, PAD))


def count_positions(labels: tf.Tensor) -> tf.Tensor:
    """Maps labels (batch, time) to the number of positions with padding, float32 (batch,)."""
    return count(tf.ones_like(labels, tf.bool))


def sum_cross_entropy(
    labels: tf.Tensor, logits: tf.Tensor, *, with_padding: bool = False
) -> tf.Tensor:
    """Sums the cross-entropy of each sentence's tokens without `PAD`.

    Args:
        labels: int32 (batch, time).
        logits: float32 (batch, time, ids).
        with_padding: Whether `PAD` counts, too.

    Returns:
        float32 (batch,).
    """
    counted = tf.ones_like(labels, tf.bool) if with_padding else tf.not_equal(labels, PAD)
    return tf.reduce_sum(token_losses(labels, logits, counted), axis=1)


def token_losses(labels: tf.Tensor, logits: tf.Tensor, counted: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each token, (batch, time), 0 where `counted` is False."""
    losses = _cross_entropy(
        tf.maximum(tf.reshape(labels, [-1]), 0),
        tf.reshape(logits, [-1, logits.shape[-1]]),
        tf.reshape(most_likely(logits), [-1]),
    )
    return tf.where(counted, tf.reshape(losses, tf.shape(labels)), 0.0)


def token_accuracy(
    name: str,
    *,
    num_known: int | None = None,
    without: tuple[int, ...] = (),
    among_known: bool = False,
) -> Metric:
    """Returns the metric that is the share of tokens whose most likely id is the right one.

    Args:
        name: The metric's name.
        num_known: Out-of-vocabulary tokens, from this id on, do not count; None to count them.
            Predicting one is still wrong.
        without: Ids of further tokens that do not count.
        among_known: Whether predictions are the most likely id below `num_known`. A single bucket
            for all out-of-vocabulary words is often the most likely id, one of 500 hardly ever.
            Only this option makes models with different numbers of buckets comparable.
    """
    limit = num_known if among_known else None
    if among_known and limit is None:
        raise ValueError("token_accuracy: among_known needs num_known.")

    def counts(labels: tf.Tensor) -> tf.Tensor:
        counted = tf.not_equal(labels, PAD)
        if num_known is not None:
            counted &= labels < num_known
        for token in without:
            counted &= tf.not_equal(labels, token)
        return counted

    def right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        chosen = most_likely(logits)
        if limit is not None:
            chosen = _among_known(chosen, logits, limit)
        return counts(labels) & tf.equal(chosen, labels)

    return Metric(
        name,
        example_value=lambda labels, logits: count(right(labels, logits)),
        example_weight=lambda labels: count(counts(labels)),
    )


def count(tokens: tf.Tensor) -> tf.Tensor:
    """Counts where a mask (batch, time) is True: float32 (batch,)."""
    return tf.reduce_sum(tf.cast(tokens, tf.float32), axis=1)


def most_likely(logits: tf.Tensor) -> tf.Tensor:
    """Returns the most likely ids, computed once for the loss and all metrics."""
    ids = getattr(logits, "_most_likely", None)
    if ids is None:
        ids = tf.argmax(logits, axis=-1, output_type=tf.int32)
        logits._most_likely = ids
    return ids


def _among_known(chosen: tf.Tensor, logits: tf.Tensor, num_known: int) -> tf.Tensor:
    """Replaces chosen ids (batch, time) from `num_known` on by the most likely ids below it."""
    places = tf.where(chosen >= num_known)
    candidates = tf.gather_nd(logits, places)[:, :num_known]
    best = tf.argmax(candidates, axis=-1, output_type=tf.int32)
    return tf.tensor_scatter_nd_update(chosen, places, best)


def _cross_entropy(labels: tf.Tensor, logits: tf.Tensor, best: tf.Tensor) -> tf.Tensor:
    """Returns the cross-entropy of each row: labels (n,), logits (n, ids), most likely ids (n,).

    TensorFlow's implementation passes over a wide softmax several times more often.
    """

    @custom_gradient
    def losses(logits):
        probabilities = tf.nn.softmax(logits)
        highest = tf.gather(logits, best, batch_dims=1)
        # log sum exp from the highest logit, since its probability never underflows.
        normalizer = highest - tf.math.log(tf.gather(probabilities, best, batch_dims=1))

        def gradient(upstream):
            places = tf.stack([tf.range(tf.size(labels)), labels], axis=1)
            scaled = probabilities * upstream[:, tf.newaxis]
            return tf.tensor_scatter_nd_sub(scaled, places, upstream)

        return normalizer - tf.gather(logits, labels, batch_dims=1), gradient

    return losses(logits)
