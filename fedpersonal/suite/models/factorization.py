"""Matrix factorization of ratings (Singhal et al., section 5.1.1; Koren et al. 2009 for biases).

SVD++ (Koren, "Factorization Meets the Neighborhood", KDD 2008, section 3.2) adds embeddings of the
items that a user has rated, independent of the ratings. Neural collaborative filtering (He et al.,
WWW 2017, section 3.3) has a network in place of the product of a user's and an item's embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Union

import tensorflow as tf
from tensorflow.python.autograph.impl.api import autograph_artifact as no_autograph

from fedpersonal.model.keras import keras
from fedpersonal.suite.models.documents import BagRows

Initializer = Union[str, keras.initializers.Initializer]


class UserVector(keras.layers.Layer):
    """A trained vector that is the same for every example: one user's embedding or bias."""

    def __init__(self, size: int, *, initializer: Initializer = "uniform", **kwargs):
        super().__init__(**kwargs)
        self._size = size
        self._initializer = initializer

    def build(self, input_shape):
        """Creates the vector, of shape (size,)."""
        del input_shape
        self.vector = self.add_weight("vector", [self._size], initializer=self._initializer)

    @no_autograph  # Nothing in it branches on tensors, and conversion is slow.
    def call(self, inputs):
        """Returns the vector for each example: (batch, size)."""
        return tf.zeros_like(inputs, tf.float32)[:, tf.newaxis] + self.vector


class SquaredNormLoss(keras.layers.Layer):
    """Adds a weight times the squared norm of each example's vectors to its loss."""

    def __init__(self, weight: float, **kwargs):
        super().__init__(**kwargs)
        self._weight = weight

    @no_autograph
    def call(self, rating, vectors):
        """Passes the rating (batch,) through; `vectors` are tensors of shape (batch, ..., size)."""
        norms = [tf.reduce_sum(tf.square(v), list(range(1, v.shape.rank))) for v in vectors]
        self.add_loss(self._weight * tf.add_n(norms))
        return rating


class AdditiveLoss(keras.layers.Layer):
    """Sums a shared and a personal vector; its loss separates them, and makes one sparse (FedRAP).

    The sparse one is the shared vector.
    """

    def __init__(self, difference: float, sparsity: float, **kwargs):
        super().__init__(**kwargs)
        self._difference, self._sparsity = difference, sparsity

    @no_autograph
    def call(self, shared, personal):
        """Returns the sum of both, (batch, size)."""
        distances = tf.reduce_sum(tf.square(personal - shared), -1)
        self.add_loss(
            self._sparsity * tf.reduce_sum(tf.abs(shared), -1) - self._difference * distances
        )
        return shared + personal


def matrix_factorization(
    *,
    num_items: int,
    num_users: int | None = None,
    embedding_dim: int = 50,
    use_biases: bool = False,
    rated_places: int = 0,
    hidden_units: Sequence[int] = (),
    per_client_items: str | None = None,
    item_difference: float = 0.0,
    item_sparsity: float = 0.0,
    mean_rating: float = 0.0,
    scale: float = 1.0,
    l2: float = 0.0,
    embedding_initializer: Initializer = "uniform",
    user_initializer: Initializer | None = None,
) -> Callable[[], keras.Model]:
    """Returns a builder of R ~ P Q^T as a Keras model of `item` (and `user`, `rated`, `num_rated`).

    Layers: `user_embedding`, `item_embedding` (and `user_bias`, `item_bias`; `rated_embedding`;
    `hidden_1` and so on, `score`).
    With `num_users` the user layers are tables that the input `user` looks up. Without it, the
    model is for one user, and the user layers hold a single vector: the local variables of
    federated reconstruction. The output has shape (batch,).

    Args:
        num_items: Rows of the item table.
        num_users: Rows of the user table, or None for a one-user model.
        embedding_dim: K, the size of an embedding.
        use_biases: Whether to add a user bias and an item bias, which start from 0.
        rated_places: If it is not 0, a bag of the items that the user has rated is added to the
            user's embedding (SVD++). Its inputs are `rated`, int32 (batch, rated_places), and
            `num_rated`, int32 (batch,), the number of places without padding. `rated_embedding`
            starts from 0.
        hidden_units: Units of each hidden layer (ReLU) of a network that takes both embeddings,
            concatenated, in place of their product; empty for the product.
        per_client_items: The name of a second table of items, which starts from 0 and whose rows
            are added to those of the first (FedRAP); None for no second table.
        item_difference: Weight of the squared distance of both tables' rows in use, subtracted from
            the loss of each example.
        item_sparsity: Weight of the absolute values of the first table's rows in use, added to the
            loss of each example.
        mean_rating: Constant added to every prediction.
        scale: Factor of the rest of the prediction. With a `squared_error` of the same scale,
            training equals that on ratings normalised to (rating - mean_rating) / scale.
        l2: Weight of the squared norms of the embeddings and biases in use, added to the loss of
            each example; for a bag, the mean of its embeddings' squared norms (Koren: their sum).
        embedding_initializer: Initializer of the embeddings.
        user_initializer: Initializer of user embeddings; None for `embedding_initializer`.
    """
    user_start = embedding_initializer if user_initializer is None else user_initializer

    def vectors_of(
        side: str, kind: str, inputs: Mapping[str, tf.Tensor], size: int, initializer: Initializer
    ) -> tf.Tensor:
        initializer, name = _new_initializer(initializer), f"{side}_{kind}"
        rows = num_items if side == "item" else num_users
        if rows is None:
            return UserVector(size, initializer=initializer, name=name)(inputs["item"])
        table = keras.layers.Embedding(rows, size, embeddings_initializer=initializer, name=name)
        return table(inputs[side])

    def build() -> keras.Model:
        inputs = {"item": keras.Input([], dtype=tf.int32, name="item")}
        if num_users is not None:
            inputs["user"] = keras.Input([], dtype=tf.int32, name="user")
        starts = {"user": user_start, "item": embedding_initializer}
        vectors = [
            vectors_of(side, "embedding", inputs, embedding_dim, start)
            for side, start in starts.items()
        ]
        user, item = vectors
        if per_client_items:
            table = keras.layers.Embedding(
                num_items, embedding_dim, embeddings_initializer="zeros", name=per_client_items
            )
            personal = table(inputs["item"])
            item = AdditiveLoss(item_difference, item_sparsity, name="additive")(item, personal)
            vectors.append(personal)
        if rated_places:
            inputs["rated"] = keras.Input([rated_places], dtype=tf.int32, name="rated")
            inputs["num_rated"] = keras.Input([], dtype=tf.int32, name="num_rated")
            table = keras.layers.Embedding(
                num_items, embedding_dim, embeddings_initializer="zeros", name="rated_embedding"
            )
            rows = BagRows(name="rated_rows")([table(inputs["rated"]), inputs["num_rated"]])
            vectors.append(rows)
            user += tf.reduce_sum(rows, axis=1)
        if hidden_units:
            hidden = tf.concat([user, item], axis=-1)
            for number, units in enumerate(hidden_units, start=1):
                dense = keras.layers.Dense(units, "relu", name=f"hidden_{number}")
                hidden = dense(hidden)
            rating = keras.layers.Dense(1, name="score")(hidden)[:, 0]
        else:
            rating = tf.reduce_sum(user * item, axis=-1)
        if scale != 1.0:
            rating *= scale
        rating += mean_rating
        if use_biases:
            biases = [vectors_of(side, "bias", inputs, 1, "zeros") for side in starts]
            added = biases[0][:, 0] + biases[1][:, 0]
            rating += added if scale == 1.0 else scale * added
            vectors += biases
        if l2:
            rating = SquaredNormLoss(l2, name="l2")(rating, vectors)
        return keras.Model(inputs, rating, name="matrix_factorization")

    return build


def squared_error(scale: float) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor] | None:
    """Returns the loss of scaled predictions, (batch,); None, the default, for a scale of 1."""

    def loss(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        return tf.square((predictions - labels) / scale)

    return None if scale == 1.0 else loss


def _new_initializer(initializer: Initializer) -> keras.initializers.Initializer:
    """Returns a new initializer for each layer: Keras' return equal values at each call."""
    initializer = keras.initializers.get(initializer)
    if isinstance(initializer, keras.initializers.Initializer):
        return type(initializer).from_config(initializer.get_config())
    return initializer
