"""Losses in any form that Keras takes, as one number an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

import tensorflow as tf

ExampleFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Loss = Union[str, tf.keras.losses.Loss, ExampleFn]


class PerExample:
    """A function in any form that Keras takes for a loss, as one float an example."""

    def __init__(self, given: Loss):
        """Takes the function, a Keras loss, or the name of one."""
        found = tf.keras.losses.get(given)
        self._call = found.call if isinstance(found, tf.keras.losses.Loss) else found

    def called(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns what the function itself does."""
        return self._call(*as_in_keras(labels, predictions))

    def __call__(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns one number an example; one of a whole batch is each example's."""
        values = self.called(labels, predictions)
        if values.shape.rank == 0:
            return tf.fill(tf.shape(labels)[:1], values)
        if values.shape.rank and values.shape.rank > 1:
            values = tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
        return values


def as_in_keras(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels and predictions as Keras' fit has them: (batch, 1) of one number an example.

    Keras averages over the last axis, which must not be the batch.
    """
    if len(predictions.shape) > 1:
        return labels, predictions
    return labels[:, tf.newaxis], predictions[:, tf.newaxis]
