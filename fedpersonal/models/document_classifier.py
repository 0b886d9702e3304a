"""The document model of FURL (Bui et al., section 4.1, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from fedpersonal.models.text_encoders import TextEncoder


def document_classifier(
    encoder: TextEncoder,
    *,
    num_outputs: int,
    num_users: int | None = None,
    user_dim: int = 32,
    hidden_units: Sequence[int] = (64,),
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of an MLP on the text's and the user's vectors.

    Inputs: the encoder's, and, with users, `user`, int32 (batch,). Layers: the encoder's,
    `user_embedding`, `hidden_0` and so on, `logits`. The output are logits of shape (batch,
    num_outputs).

    Args:
        encoder: What makes a vector of a text.
        num_outputs: Classes, or 1 for a binary label.
        num_users: Rows of the table of user embeddings: 1 where each user has a model of its own,
            None for a model that knows no users.
        user_dim: Size of a user embedding.
        hidden_units: Units of the MLP's hidden layers.
    """

    def build() -> tf.keras.Model:
        inputs = encoder.inputs()
        vectors = [encoder.encode(inputs)]
        if num_users is not None:
            inputs["user"] = tf.keras.Input([], dtype=tf.int32, name="user")
            table = tf.keras.layers.Embedding(num_users, user_dim, name="user_embedding")
            vectors.append(table(inputs["user"]))
        hidden = tf.concat(vectors, axis=-1)
        for number, units in enumerate(hidden_units):
            layer = tf.keras.layers.Dense(units, activation="relu", name=f"hidden_{number}")
            hidden = layer(hidden)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(num_outputs, name="logits")(hidden))

    return build
