"""The document model of FURL (Bui et al., section 4.1, Figure 1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import tensorflow as tf

from fedpersonal.models.recurrent import BidirectionalEnds

PADDING = 0


class CharacterMask(tf.keras.layers.Layer):
    """Passes embedded characters on with a mask of what is no padding."""

    def call(self, inputs):
        """Maps characters (batch, time) and their embeddings (batch, time, size) to the latter."""
        return tf.identity(inputs[1])

    def compute_mask(self, inputs, mask=None):
        """Returns where there are characters, bool (batch, time)."""
        del mask
        return tf.not_equal(inputs[0], PADDING)


def count_characters(features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
    """Returns each text's length without padding, int32 (batch,)."""
    del labels
    return tf.reduce_sum(tf.cast(tf.not_equal(features["text"], PADDING), tf.int32), axis=1)


def document_classifier(
    *,
    num_characters: int,
    num_outputs: int,
    num_users: int | None = None,
    user_dim: int = 32,
    character_dim: int = 32,
    lstm_units: int = 32,
    hidden_units: Sequence[int] = (64,),
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of a character BiLSTM and an MLP on the text's and the user's vectors.

    Inputs: `text`, int32 (batch, time), characters' ids with 0 for padding at the end, at least one
    a text; and, with users, `user`, int32 (batch,). Layers: `characters`, `encoder`,
    `user_embedding`, `hidden_0` and so on, `logits`. The output are logits of shape (batch,
    num_outputs).

    Args:
        num_characters: Ids of characters.
        num_outputs: Classes, or 1 for a binary label.
        num_users: Rows of the table of user embeddings: 1 where each user has a model of its own,
            None for a model that knows no users.
        user_dim: Size of a user embedding.
        character_dim: Size of a character embedding.
        lstm_units: Units of each of the two LSTMs.
        hidden_units: Units of the MLP's hidden layers.
    """

    def build() -> tf.keras.Model:
        text = tf.keras.Input([None], dtype=tf.int32, name="text")
        inputs = {"text": text}
        embedded = tf.keras.layers.Embedding(num_characters, character_dim, name="characters")(text)
        masked = CharacterMask(name="mask")([text, embedded])
        ends = [BidirectionalEnds(lstm_units, name="encoder")(masked)]
        if num_users is not None:
            inputs["user"] = tf.keras.Input([], dtype=tf.int32, name="user")
            table = tf.keras.layers.Embedding(num_users, user_dim, name="user_embedding")
            ends.append(table(inputs["user"]))
        hidden = tf.concat(ends, axis=-1)
        for number, units in enumerate(hidden_units):
            layer = tf.keras.layers.Dense(units, activation="relu", name=f"hidden_{number}")
            hidden = layer(hidden)
        return tf.keras.Model(inputs, tf.keras.layers.Dense(num_outputs, name="logits")(hidden))

    return build
