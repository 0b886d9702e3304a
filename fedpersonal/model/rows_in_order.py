"""Lookups of ids that count 0, 1, 2, ...: what they return is the table itself.

Keras would gather the rows in a step, and scatter their gradients: half of the work of a step of
matrix factorization.
"""

from __future__ import annotations

import functools
from collections.abc import Container

import tensorflow as tf


def skip_lookups(model: tf.keras.Model, names: Container[str]) -> None:
    """Has a model's embeddings of these names return their tables, where that is the same.

    It is where they look an input of the model up as it is; others are left alone.
    """
    inputs = {id(tensor) for tensor in tf.nest.flatten(getattr(model, "inputs", None))}
    for layer in model.layers:
        if (
            layer.name in names
            and type(layer) is tf.keras.layers.Embedding
            and not layer.mask_zero
            and layer.compute_dtype == layer.variable_dtype
            and len(layer.inbound_nodes) == 1
            and id(layer.input) in inputs
        ):
            layer.call = functools.partial(_all_rows, layer)


@tf.autograph.experimental.do_not_convert  # Nothing in it branches on tensors.
def _all_rows(layer: tf.keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.convert_to_tensor(layer.embeddings)
    if ids.shape.rank == 1:
        return tf.ensure_shape(rows, [ids.shape[0], layer.output_dim])
    return tf.reshape(rows, tf.concat([tf.shape(ids), [layer.output_dim]], 0))
