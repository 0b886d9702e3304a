"""A frozen language model behind a vector of preferences (FedPerC: Silva et al., section 3.1).

Each client has a personal embedding and each context one that all clients share. Their product,
element by element, takes the place of a text's first token; of longer embeddings, it is several
vectors.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from fedpersonal.models.frozen_gpt2 import FrozenGPT2

NAME = "language_model"
BASE = "base"
PERSONAL = "personal_embedding"
CONTEXT = "context_embedding"
INPUT_SPEC = {
    "text": tf.TensorSpec([None, None], tf.int32),
    "user": tf.TensorSpec([None], tf.int32),
    "context": tf.TensorSpec([None], tf.int32),
}


class PrefixLanguageModel(tf.keras.Model):
    """GPT-2 behind the product of a personal and a context embedding."""

    def __init__(
        self,
        config: GPT2Config,
        *,
        num_contexts: int,
        start: np.ndarray,
        spread: float = 0.02,
        prefix_length: int = 1,
        num_users: int = 1,
    ):
        """Makes a model that untrained predicts nearly as the base by itself does.

        Args:
            config: That of the base.
            num_contexts: How many contexts there are.
            start: float32 (dim,), with which context embeddings start: the base's own embedding of
                a text's first token.
            spread: Standard deviation, around 1, of the numbers with which personal embeddings
                start.
            prefix_length: How many vectors an embedding holds.
            num_users: Rows of personal embeddings: one, unless a server has those of all.
        """
        super().__init__(name=NAME)
        near_one = tf.keras.initializers.RandomNormal(mean=1.0, stddev=spread)
        self._length, size = prefix_length, prefix_length * config.n_embd
        start = np.tile(start, prefix_length)
        self.personal_embedding = tf.keras.layers.Embedding(
            num_users, size, embeddings_initializer=near_one, name=PERSONAL
        )
        self.context_embedding = tf.keras.layers.Embedding(
            num_contexts,
            size,
            embeddings_initializer=lambda shape, dtype=None: tf.broadcast_to(start, shape),
            name=CONTEXT,
        )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time), `user` and `context` (batch,) to logits (batch, time, ids)."""
        del training
        prefix = self.personal_embedding(inputs["user"]) * self.context_embedding(inputs["context"])
        if self._length > 1:
            prefix = tf.reshape(prefix, [-1, self._length, prefix.shape[-1] // self._length])
        return self.base.predict_tokens(self.base([inputs["text"], prefix]))
