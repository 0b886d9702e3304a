"""How a text becomes a vector: characters read by LSTMs, or a bag of words."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import ClassVar, Protocol

import tensorflow as tf

from fedpersonal.models.bag import Bag
from fedpersonal.models.recurrent import BidirectionalEnds

PADDING = 0


class TextEncoder(Protocol):
    """Layers that make a vector of a text.

    Attributes:
        layers: Their names.
        lookups: Those that are big tables, and nothing but looked up, to the input that does so.
    """

    layers: ClassVar[tuple[str, ...]]
    lookups: ClassVar[Mapping[str, str]]

    def inputs(self) -> dict[str, tf.keras.Input]:
        """Returns the inputs by name, new ones at each call."""

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Maps the inputs to the texts' vectors, float32 (batch, size)."""

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Returns how many places of each text are no padding, at least 1, int32 (batch,)."""


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

    def inputs(self) -> dict[str, tf.keras.Input]:
        """Returns the input."""
        return {"text": tf.keras.Input([None], dtype=tf.int32, name="text")}

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the LSTMs' last states."""
        table = tf.keras.layers.Embedding(self.num_ids, self.character_dim, name="characters")
        masked = CharacterMask(name="mask")([inputs["text"], table(inputs["text"])])
        return BidirectionalEnds(self.lstm_units, name="encoder")(masked)

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Counts what is no padding."""
        del labels
        is_real = tf.not_equal(features["text"], PADDING)
        return tf.reduce_sum(tf.cast(is_real, tf.int32), axis=1)


@dataclasses.dataclass(frozen=True)
class HashedWordEncoder:
    """A bag of hashed words: the sum of their embeddings over the root of how many there are.

    So the bag is of length 1 before the embedding, however long the text. A text without words is
    zeros. The inputs are `text`, int32 (batch, places), buckets' ids with 0 for padding at the end,
    and `num_words`, int32 (batch,), how many are none.

    Attributes:
        num_ids: Ids of buckets.
        word_dim: Size of an embedding.
        start: What embeddings are at first, a name of Keras' initializers.
    """

    num_ids: int
    word_dim: int = 32
    start: str = "uniform"

    layers: ClassVar[tuple[str, ...]] = ("words",)
    lookups: ClassVar[Mapping[str, str]] = {"words": "text"}

    def inputs(self) -> dict[str, tf.keras.Input]:
        """Returns the inputs."""
        return {
            "text": tf.keras.Input([None], dtype=tf.int32, name="text"),
            "num_words": tf.keras.Input([], dtype=tf.int32, name="num_words"),
        }

    def encode(self, inputs: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns the bags' embeddings."""
        table = tf.keras.layers.Embedding(
            self.num_ids, self.word_dim, embeddings_initializer=self.start, name="words"
        )
        return Bag(name="bag")([table(inputs["text"]), inputs["num_words"]])

    def lengths(self, features: Mapping[str, tf.Tensor], labels: tf.Tensor) -> tf.Tensor:
        """Returns what the texts say."""
        del labels
        return tf.maximum(features["num_words"], 1)


class CharacterMask(tf.keras.layers.Layer):
    """Passes embedded characters on with a mask of what is no padding."""

    def call(self, inputs):
        """Maps characters (batch, time) and their embeddings (batch, time, size) to the latter."""
        return tf.identity(inputs[1])

    def compute_mask(self, inputs, mask=None):
        """Returns where there are characters, bool (batch, time)."""
        del mask
        return tf.not_equal(inputs[0], PADDING)
