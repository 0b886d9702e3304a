"""What an output says of classes, to be mixed with what others say of them.

An output has a number for each class, or a single one of the labels 0 and 1. Its numbers are
logits, unless Keras' softmax or sigmoid has made them.
"""

from __future__ import annotations

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.keras import (
    are_probabilities,
    as_probabilities,
    logits_of,
    mask_of,
    with_notes,
)

# Less likely is nothing: of 0 there is no logarithm.
_LEAST = 1e-12


def check_classes(output: tf.Tensor, label_spec: tf.TensorSpec, what: str) -> None:
    """Raises a UserError unless an output, (batch, ..., size), is for labels of classes.

    `what` are for such labels alone, by the message.
    """
    if output.shape.rank != label_spec.shape.rank + 1:
        raise UserError(
            f"{what} are for labels that are ids of classes, with an output for each class; "
            f"label_spec has the shape {label_spec.shape}, the output {output.shape}."
        )


def log_likely(output: tf.Tensor) -> tf.Tensor:
    """Returns by an output the logarithm of how likely each class is, (n, classes).

    All places of sequences are in one axis. A single output gives both classes.
    """
    logits = logits_of(output)
    flat = tf.reshape(logits, [-1, logits.shape[-1]])
    if logits.shape[-1] > 1:
        return tf.nn.log_softmax(flat)
    return tf.concat([tf.math.log_sigmoid(-flat), tf.math.log_sigmoid(flat)], 1)


def log_of(likely: tf.Tensor) -> tf.Tensor:
    """Returns logarithms of probabilities, some of which may be 0."""
    return tf.math.log(tf.maximum(likely, _LEAST))


def as_output(logs: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Returns what `log_likely` does in the form of an output that it takes the place of."""
    logits = logs if output.shape[-1] > 1 else logs[:, 1:] - logs[:, :1]
    logits = tf.ensure_shape(tf.reshape(logits, tf.shape(output)), output.shape)
    likely = as_probabilities(logits) if are_probabilities(output) else logits
    mask = mask_of(output)
    return likely if mask is None else with_notes(likely, {"_keras_mask": mask})
