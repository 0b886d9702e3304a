"""Class probabilities of a model's output, so that outputs of several models can be mixed.

An output has a number for each class, or a single number for the labels 0 and 1. The numbers are
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

# The least probability, since 0 has no logarithm.
_LEAST = 1e-12


def check_classes(output: tf.Tensor, label_spec: tf.TensorSpec, feature: str) -> None:
    """Checks that labels are ids of classes, with an output for each class.

    Args:
        output: The model's output, (batch, ..., size).
        label_spec: The labels' spec.
        feature: The feature that requires such labels, as a plural noun for the message.

    Raises:
        UserError: If they are not.
    """
    if output.shape.rank != label_spec.shape.rank + 1:
        raise UserError(
            f"{feature} require labels that are ids of classes, with an output for each class; "
            f"label_spec has the shape {label_spec.shape}, the output {output.shape}."
        )


def log_probabilities(output: tf.Tensor) -> tf.Tensor:
    """Returns the logarithm of each class' probability, (n, classes).

    The batch and the places of sequences are flattened into the first axis. A single output gives
    both classes.
    """
    logits = logits_of(output)
    flat = tf.reshape(logits, [-1, logits.shape[-1]])
    if logits.shape[-1] > 1:
        return tf.nn.log_softmax(flat)
    return tf.concat([tf.math.log_sigmoid(-flat), tf.math.log_sigmoid(flat)], 1)


def safe_log(probabilities: tf.Tensor) -> tf.Tensor:
    """Returns logarithms of probabilities, which may be 0."""
    return tf.math.log(tf.maximum(probabilities, _LEAST))


def as_output(logs: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Converts log probabilities back to the form of a model's output.

    Args:
        logs: Logarithms of probabilities, such as from `log_probabilities`.
        output: The output that they replace; it gives the shape, the mask, and whether the result
            is logits or probabilities.
    """
    logits = logs if output.shape[-1] > 1 else logs[:, 1:] - logs[:, :1]
    logits = tf.ensure_shape(tf.reshape(logits, tf.shape(output)), output.shape)
    result = as_probabilities(logits) if are_probabilities(output) else logits
    mask = mask_of(output)
    return result if mask is None else with_notes(result, {"_keras_mask": mask})
