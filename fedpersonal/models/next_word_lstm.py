"""The next word model of FedRecon (Singhal et al., sections 5.1.2 and C.2; Reddi et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from fedpersonal.models.recurrent import LSTM

PAD = 0


class JoinedEmbeddings(tf.keras.layers.Layer):
    """The sum of two embeddings, each of its own tokens alone; padding is zero and masked."""

    def __init__(self, num_known: int, **kwargs):
        super().__init__(**kwargs)
        self._num_known = num_known

    def call(self, inputs):
        """Maps tokens (batch, time) and two embeddings (batch, time, size) to one."""
        token, known, out_of_vocabulary = inputs
        is_known = (token < self._num_known) & tf.not_equal(token, PAD)
        is_other = token >= self._num_known

        def only(condition, vectors):
            return vectors * tf.cast(condition, vectors.dtype)[..., tf.newaxis]

        return only(is_known, known) + only(is_other, out_of_vocabulary)

    def compute_mask(self, inputs, mask=None):
        """Returns where tokens are no padding, bool (batch, time)."""
        del mask
        return tf.not_equal(inputs[0], PAD)


def next_word_lstm(
    *,
    num_known: int,
    num_oov_buckets: int,
    embedding_dim: int = 96,
    lstm_units: int = 670,
    projection_dim: int = 96,
    recurrent_layer: Callable[..., tf.keras.layers.Layer] = LSTM,
    oov_initializer: str | tf.keras.initializers.Initializer = "uniform",
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of an LSTM language model as a Keras model.

    Its inputs are int32 (batch, time): `token`, and where each token stands in the two embeddings,
    `known_token` and `oov_token`, as `fedpersonal.data.texts.next_word` makes them. Layers:
    `known_embedding`, `oov_embedding` (the local one of federated reconstruction), `lstm`,
    `projection` and `logits`. The output are logits (batch, time, num_known + num_oov_buckets).

    Args:
        num_known: Ids that are no bucket: special tokens and the vocabulary.
        num_oov_buckets: Buckets of all other words; their ids follow.
        embedding_dim: Size of an embedding.
        lstm_units: Units of the LSTM.
        projection_dim: Size of the projection before the softmax.
        recurrent_layer: Builds the LSTM from `units` and `name`.
        oov_initializer: That of `oov_embedding`.
    """

    def build() -> tf.keras.Model:
        inputs = {
            name: tf.keras.Input([None], dtype=tf.int32, name=name)
            for name in ("token", "known_token", "oov_token")
        }
        known = tf.keras.layers.Embedding(num_known, embedding_dim, name="known_embedding")
        other = tf.keras.layers.Embedding(
            num_oov_buckets, embedding_dim, oov_initializer, name="oov_embedding"
        )
        hidden = JoinedEmbeddings(num_known, name="embedding")(
            [inputs["token"], known(inputs["known_token"]), other(inputs["oov_token"])]
        )
        hidden = recurrent_layer(lstm_units, name="lstm")(hidden)
        hidden = tf.keras.layers.Dense(projection_dim, name="projection")(hidden)
        logits = tf.keras.layers.Dense(num_known + num_oov_buckets, name="logits")(hidden)
        return tf.keras.Model(inputs, logits)

    return build
