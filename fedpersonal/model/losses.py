"""Losses in any form that Keras takes, as one number an example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Union

import tensorflow as tf

ExampleFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Loss = Union[str, tf.keras.losses.Loss, ExampleFn]


def as_example_fn(loss: Loss) -> ExampleFn:
    """Makes a loss return one float an example, whatever form it was given in."""
    loss = tf.keras.losses.get(loss)
    call = loss.call if isinstance(loss, tf.keras.losses.Loss) else loss

    def example_losses(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        if predictions.shape.rank == 1:
            # Keras averages over the last axis, which must not be the batch.
            labels, predictions = labels[:, tf.newaxis], predictions[:, tf.newaxis]
        losses = call(labels, predictions)
        if losses.shape.rank and losses.shape.rank > 1:
            losses = tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))
        return losses

    return example_losses
