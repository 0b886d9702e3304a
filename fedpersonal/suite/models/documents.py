"""The document model of FURL (Bui et al., section 4.1, Figure 1)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Protocol

import tensorflow as tf

from fedpersonal.model.keras import keras
from fedpersonal.suite.models.next_word import BidirectionalEnds
from fedpersonal.suite.models.tokens import custom_gradient


class Bag(keras.layers.Layer):
    """Sums the embeddings of a bag's items, divided by the root of their number."""

    def call(self, inputs):
        """Maps embeddings (batch, places, size) and numbers of items (batch,) to (batch, size).

        The items come first; the places after them are padding.
        """
        embedded, count = inputs
        return _sum_shares(_shares(embedded, count), embedded)


class BagRows(keras.layers.Layer):
    """The rows that a `Bag` sums: each embedding divided by the root of their number."""

    def call(self, inputs):
        """Maps embeddings (batch, places, size) and numbers of items (batch,) to such rows."""
        embedded, count = inputs
        return _shares(embedded, count)[..., tf.newaxis] * embedded


@tf.autograph.experimental.do_not_convert
def _sum_shares(shares: tf.Tensor, embedded: tf.Tensor) -> tf.Tensor:
    """Sums embeddings (batch, places, size), weighted by shares (batch, places)."""

    @custom_gradient
    def total(embedded):
        def gradient(upstream):
            # TensorFlow's gradient transposes its result in memory twice.
            return shares[..., tf.newaxis] * upstream[:, tf.newaxis]

        return tf.einsum("bp,bps->bs", shares, embedded), gradient

    return total(embedded)


def _shares(embedded: tf.Tensor, count: tf.Tensor) -> tf.Tensor:
    is_item = tf.sequence_mask(count, tf.shape(embedded)[1], tf.float32)
    roots = tf.sqrt(tf.cast(tf.maximum(count, 1), tf.float32))
    return is_item / roots[:, tf.newaxis]


PADDING = 0


class TextEncoder(Protocol):
    """Layers that map a text to a vector.

    Attributes:
        layers: Their names.
        lookups: The layers that are big tables and only looked up, to the input that looks them up.
    """

    layers: ClassVar[tuple[str, ...]]
    lookups: ClassVar[Mapping[str, str]]

    def inputs(self) -> dict[str, keras.Input]:
        """Returns the inputs by name, new ones at each call."""

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Maps the inputs to the texts' vectors, float32 (batch, size)."""

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Returns the length of each text without padding, at least 1, int32 (batch,)."""


@dataclasses.dataclass(frozen=True)
class CharacterEncoder:
    """The last states of a BiLSTM of characters (Bui et al., Figure 1).

    The input is `text`, int32 (batch, time), characters' ids with 0 for padding at the end, at
    least one a text.

    Attributes:
        num_ids: Ids of characters.
        character_dim: Size of a character embedding.
        lstm_units: Units of each of the two LSTMs; the vector is twice as long.
    """

    num_ids: int
    character_dim: int = 32
    lstm_units: int = 32

    layers: ClassVar[tuple[str, ...]] = ("characters", "encoder")
    lookups: ClassVar[Mapping[str, str]] = {}

    def inputs(self) -> dict[str, keras.Input]:
        """Returns the input."""
        return {"text": keras.Input([None], dtype=tf.int32, name="text")}

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the LSTMs' last states."""
        table = keras.layers.Embedding(self.num_ids, self.character_dim, name="characters")
        masked = CharacterMask(name="mask")([inputs["text"], table(inputs["text"])])
        return BidirectionalEnds(self.lstm_units, name="encoder")(masked)

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Counts places without padding."""
        del labels
        is_real = tf.not_equal(features["text"], PADDING)
        return tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1)


@dataclasses.dataclass(frozen=True)
class HashedWordEncoder:
    """A bag of hashed words: the sum of their embeddings divided by the root of their number.

    The bag thus has norm 1 before the embedding, for any length of text. A text without words is
    zeros. The inputs are `text`, int32 (batch, places), buckets' ids with 0 for padding at the end,
    and `num_words`, int32 (batch,), the number of ids without padding.

    Attributes:
        num_ids: Ids of buckets.
        word_dim: Size of an embedding.
        start: The embeddings' initializer, a name of Keras' initializers.
    """

    num_ids: int
    word_dim: int = 32
    start: str = "uniform"

    layers: ClassVar[tuple[str, ...]] = ("words",)
    lookups: ClassVar[Mapping[str, str]] = {"words": "text"}

    def inputs(self) -> dict[str, keras.Input]:
        """Returns the inputs."""
        return {
            "text": keras.Input([None], dtype=tf.int32, name="text"),
            "num_words": keras.Input([], dtype=tf.int32, name="num_words"),
        }

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the bags' embeddings."""
        table = keras.layers.Embedding(
            self.num_ids, self.word_dim, embeddings_initializer=self.start, name="words"
        )
        return Bag(name="bag")([table(inputs["text"]), inputs["num_words"]])

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Returns the texts' `num_words`."""
        del labels
        return tf.maximum(features["num_words"], 1)


class CharacterMask(keras.layers.Layer):
    """Passes embedded characters through, with a mask of places without padding."""

    def call(self, inputs):
        """Maps characters (batch, time) and their embeddings (batch, time, size) to the latter."""
        return tf.identity(inputs[1])

    def compute_mask(self, inputs, mask=None):
        """Returns where there are characters, bool (batch, time)."""
        del mask
        return tf.not_equal(inputs[0], PADDING)


# Words are trained SCALE ** 2 times as fast as a bias: most are in few texts, and a bias is in all.
SCALE = 10.0


def document_classifier(
    encoder: TextEncoder,
    *,
    num_outputs: int,
    num_users: int | None = None,
    user_dim: int | None = 32,
    hidden_units: Sequence[int] | None = (64,),
) -> Callable[[], keras.Model]:
    """Returns a builder of an MLP on the text's and the user's vectors, or on the text's alone.

    Inputs: the encoder's, and, with users, `user`, int32 (batch,). Layers: the encoder's,
    `user_embedding`, `hidden_0` and so on, `logits`. The outputs are logits of shape (batch,
    num_outputs).

    Args:
        encoder: Maps a text to a vector.
        num_outputs: Classes, or 1 for a binary label.
        num_users: Rows of the table of user embeddings: 1 if each user has a separate model,
            None for a model without users.
        user_dim: Size of a user embedding. None for one number per output, which is added to the
            output: for a class, it grows with how often the user has the class.
        hidden_units: Units of the MLP's hidden layers. None if the encoder's vectors have a number
            per output: then the outputs are `SCALE` times these plus a bias.
    """

    def build() -> keras.Model:
        inputs = encoder.inputs()
        hidden, users = encoder.encode(inputs), None
        if num_users is not None:
            inputs["user"] = keras.Input([], dtype=tf.int32, name="user")
            table = keras.layers.Embedding(
                num_users,
                user_dim or num_outputs,
                embeddings_initializer="uniform" if user_dim else "zeros",
                name="user_embedding",
            )
            users = table(inputs["user"])
        if users is not None and user_dim:
            hidden = keras.layers.Concatenate()([hidden, users])
        for number, units in enumerate(hidden_units or ()):
            layer = keras.layers.Dense(units, activation="relu", name=f"hidden_{number}")
            hidden = layer(hidden)
        if hidden_units is None:
            logits = ScaledScores(name="logits")(hidden)
        else:
            logits = keras.layers.Dense(num_outputs, name="logits")(hidden)
        if users is not None and not user_dim:
            logits = keras.layers.Add()([logits, users])
        return keras.Model(inputs, logits)

    return build


class ScaledScores(keras.layers.Layer):
    """Multiplies scores, (batch, num_outputs), by `SCALE` and adds a bias to each."""

    def build(self, input_shape):
        """Creates the biases, initially 0."""
        self.bias = self.add_weight("bias", shape=input_shape[-1:], initializer="zeros")

    def call(self, inputs):
        """Returns the outputs."""
        return SCALE * inputs + self.bias
