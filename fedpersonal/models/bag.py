"""Bags of things, each with an embedding: a text's words, the items that a user has rated."""

from __future__ import annotations

import tensorflow as tf


class Bag(tf.keras.layers.Layer):
    """Sums the embeddings of a bag's things, over the root of their number."""

    def call(self, inputs):
        """Maps embeddings (batch, places, size) and numbers of things (batch,) to (batch, size).

        The things come first; the places after them do not count.
        """
        embedded, count = inputs
        return tf.einsum("bp,bps->bs", _shares(embedded, count), embedded)


class BagRows(tf.keras.layers.Layer):
    """The rows that a `Bag` sums: each embedding over the root of their number."""

    def call(self, inputs):
        """Maps embeddings (batch, places, size) and numbers of things (batch,) to such rows."""
        embedded, count = inputs
        return _shares(embedded, count)[..., tf.newaxis] * embedded


def _shares(embedded: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    is_thing = tf.sequence_mask(count, tf.shape(embedded)[1], tf.float32)
    roots = tf.sqrt(tf.cast(tf.maximum(count, 1), tf.float32))
    return is_thing / roots[:, tf.newaxis]
