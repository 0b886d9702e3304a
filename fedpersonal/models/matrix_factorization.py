"""Matrix factorization of ratings (Singhal et al., section 5.1.1; Koren et al. 2009 for biases)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


class OwnVector(tf.keras.layers.Layer):
    """A trained vector that is the same for every example: one user's embedding or bias."""

    def __init__(self, size: int, *, initializer="uniform", **kwargs):
        """Takes the vector's size and a Keras initializer."""
        super().__init__(**kwargs)
        self._size = size
        self._initializer = initializer

    def build(self, input_shape):
        """Creates the vector, of shape (size,)."""
        del input_shape
        self.vector = self.add_weight("vector", [self._size], initializer=self._initializer)

    def call(self, inputs):
        """Returns the vector for each example: (batch, size)."""
        return tf.zeros_like(inputs, tf.float32)[:, tf.newaxis] + self.vector


class SquaredNormLoss(tf.keras.layers.Layer):
    """Adds a weight times the squared norm of each example's vectors to its loss."""

    def __init__(self, weight: float, **kwargs):
        """Takes the weight."""
        super().__init__(**kwargs)
        self._weight = weight

    def call(self, rating, vectors):
        """Passes the rating (batch,) through; `vectors` are tensors of shape (batch, size)."""
        norms = [tf.reduce_sum(tf.square(vector), axis=-1) for vector in vectors]
        self.add_loss(self._weight * tf.add_n(norms))
        return rating


def matrix_factorization(
    *,
    num_items: int,
    num_users: int | None = None,
    embedding_dim: int = 50,
    use_biases: bool = False,
    mean_rating: float = 0.0,
    l2: float = 0.0,
    embedding_initializer="uniform",
    user_initializer=None,
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of R ~ P Q^T as a Keras model of input `item` (and `user`).

    Layers: `user_embedding`, `item_embedding` (and `user_bias`, `item_bias`). With `num_users` the
    user layers are tables that the input `user` looks up; without, the model is one user's and they
    hold a single vector: the local variables of federated reconstruction.

    Args:
        num_items: Rows of the item table.
        num_users: Rows of the user table, or None for a one-user model.
        embedding_dim: K, the size of an embedding.
        use_biases: Whether to add a user bias and an item bias.
        mean_rating: Constant added to every prediction.
        l2: Weight of the squared norms of the embeddings and biases in use, added to the loss of
            each example.
        embedding_initializer: A Keras initializer of the embeddings; biases start from 0.
        user_initializer: The same for user embeddings alone; None for `embedding_initializer`.

    Returns:
        A function without arguments that returns the model; its output has shape (batch,).
    """
    user_start = embedding_initializer if user_initializer is None else user_initializer

    def user_vector(inputs, name: str, size: int, initializer):
        initializer = _fresh(initializer)
        if num_users is None:
            return OwnVector(size, initializer=initializer, name=name)(inputs["item"])
        table = tf.keras.layers.Embedding(
            num_users, size, embeddings_initializer=initializer, name=name
        )
        return table(inputs["user"])

    def item_vector(inputs, name: str, size: int, initializer):
        table = tf.keras.layers.Embedding(
            num_items, size, embeddings_initializer=_fresh(initializer), name=name
        )
        return table(inputs["item"])

    def build() -> tf.keras.Model:
        inputs = {"item": tf.keras.Input([], dtype=tf.int32, name="item")}
        if num_users is not None:
            inputs["user"] = tf.keras.Input([], dtype=tf.int32, name="user")
        user = user_vector(inputs, "user_embedding", embedding_dim, user_start)
        item = item_vector(inputs, "item_embedding", embedding_dim, embedding_initializer)
        vectors = [user, item]
        rating = tf.reduce_sum(user * item, axis=-1) + mean_rating
        if use_biases:
            biases = [user_vector(inputs, "user_bias", 1, "zeros")]
            biases.append(item_vector(inputs, "item_bias", 1, "zeros"))
            rating += biases[0][:, 0] + biases[1][:, 0]
            vectors += biases
        if l2:
            rating = SquaredNormLoss(l2, name="l2")(rating, vectors)
        return tf.keras.Model(inputs, rating, name="matrix_factorization")

    return build


def _fresh(initializer):
    """Returns an initializer of its own for each layer: Keras' draw the same each time."""
    initializer = tf.keras.initializers.get(initializer)
    if isinstance(initializer, tf.keras.initializers.Initializer):
        return type(initializer).from_config(initializer.get_config())
    return initializer
