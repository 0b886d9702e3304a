"""The document model of FURL (Bui et al., section 4.1, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf

from fedpersonal.models.text_encoders import TextEncoder

# Words move SCALE ** 2 times as fast as a bias: most are in few texts, and a bias is in all.
SCALE = 10.0


def document_classifier(
    encoder: TextEncoder,
    *,
    num_outputs: int,
    num_users: int | None = None,
    user_dim: int | None = 32,
    hidden_units: Sequence[int] | None = (64,),
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of an MLP on the text's and the user's vectors, or on the text's alone.

    Inputs: the encoder's, and, with users, `user`, int32 (batch,). Layers: the encoder's,
    `user_embedding`, `hidden_0` and so on, `logits`. The output are logits of shape (batch,
    num_outputs).

    Args:
        encoder: What makes a vector of a text.
        num_outputs: Classes, or 1 for a binary label.
        num_users: Rows of the table of user embeddings: 1 where each user has a model of its own,
            None for a model that knows no users.
        user_dim: Size of a user embedding; None for one number an output, which is added to it: of
            classes, how much more often than others the user has them.
        hidden_units: Units of the MLP's hidden layers; None where the encoder's vectors are already
            of a number an output: then the outputs are `SCALE` times these, and a bias.
    """

    def build() -> tf.keras.Model:
        inputs = encoder.inputs()
        hidden, users = encoder.encode(inputs), None
        if num_users is not None:
            inputs["user"] = tf.keras.Input([], dtype=tf.int32, name="user")
            table = tf.keras.layers.Embedding(
                num_users,
                user_dim or num_outputs,
                embeddings_initializer="uniform" if user_dim else "zeros",
                name="user_embedding",
            )
            users = table(inputs["user"])
        if users is not None and user_dim:
            hidden = tf.concat([hidden, users], axis=-1)
        for number, units in enumerate(hidden_units or ()):
            layer = tf.keras.layers.Dense(units, activation="relu", name=f"hidden_{number}")
            hidden = layer(hidden)
        if hidden_units is None:
            logits = ScaledScores(name="logits")(hidden)
        else:
            logits = tf.keras.layers.Dense(num_outputs, name="logits")(hidden)
        if users is not None and not user_dim:
            logits += users
        return tf.keras.Model(inputs, logits)

    return build


class ScaledScores(tf.keras.layers.Layer):
    """Multiplies the scores of outputs, (batch, num_outputs), by `SCALE` and adds a bias each."""

    def build(self, input_shape):
        """Makes the biases, zeros at first."""
        self.bias = self.add_weight("bias", shape=input_shape[-1:], initializer="zeros")

    def call(self, inputs):
        """Returns the outputs."""
        return SCALE * inputs + self.bias
