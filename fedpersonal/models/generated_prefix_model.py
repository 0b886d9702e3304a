"""FedPerC's generators: preferences predicted from a client's text (Silva et al., appendix A).

Two decoder blocks, shared by all, turn a personal and a context embedding into those that fit what
the client has written. Nothing is trained on a client to know it: forward passes suffice.

The paper moves the embeddings at every token of the text that is predicted. Here they are moved
once, by other texts of the same client, and then stay: one pass instead of one for every token. And
personal embeddings start from zero, not at random, so that they depend on nothing but the texts.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from fedpersonal.models.frozen_gpt2 import FrozenGPT2
from fedpersonal.models.prefix_language_model import BASE, CONTEXT, NAME, PERSONAL


class EmbeddingGenerator(tf.keras.layers.Layer):
    """A transformer's decoder block whose one query is an embedding, and whose keys are words."""

    def __init__(self, dim: int, num_heads: int, *, start: np.ndarray, spread: float, **kwargs):
        """Takes sizes; untrained, it returns about `start` (dim,), whatever it reads."""
        super().__init__(**kwargs)
        self.attention = tf.keras.layers.MultiHeadAttention(num_heads, dim // num_heads)
        self.norms = [tf.keras.layers.LayerNormalization() for _ in range(4)]
        self.output_norm = tf.keras.layers.LayerNormalization(
            gamma_initializer=tf.keras.initializers.Constant(spread),
            beta_initializer=lambda shape, dtype=None: tf.broadcast_to(start, shape),
        )
        self.feed_forward = tf.keras.Sequential(
            [tf.keras.layers.Dense(4 * dim, activation="gelu"), tf.keras.layers.Dense(dim)]
        )

    def call(self, inputs):
        """Maps an embedding (batch, dim), words (batch, time, dim) and a mask to (batch, dim)."""
        embedding, words, mask = inputs
        query = self.norms[0](embedding)[:, tf.newaxis]
        read = self.attention(query, words, attention_mask=mask[:, tf.newaxis])[:, 0]
        before = self.norms[1](embedding)
        # Where there is nothing to read, nothing is added.
        read = tf.where(tf.reduce_any(mask, -1)[:, tf.newaxis], read, 0.0)
        middle = self.norms[3](self.norms[2](read) + before)
        return self.output_norm(self.feed_forward(middle) + before)


class GeneratedPrefixModel(tf.keras.Model):
    """GPT-2 behind the product of a generated personal and a generated context embedding."""

    def __init__(
        self, config: GPT2Config, *, num_contexts: int, start: np.ndarray, spread: float = 0.02
    ):
        """Makes a model; arguments are those of `PrefixLanguageModel`.

        `spread` says how far from `start`, and from 1, generated embeddings start.
        """
        super().__init__(name=NAME)
        dim = config.n_embd
        normal = tf.keras.initializers.RandomNormal(stddev=0.02)
        self.personal_embedding = tf.keras.layers.Embedding(1, dim, "zeros", name=PERSONAL)
        self.context_embedding = tf.keras.layers.Embedding(num_contexts, dim, normal, name=CONTEXT)
        self.personal_generator = EmbeddingGenerator(
            dim, config.n_head, start=np.ones_like(start), spread=spread, name="personal_generator"
        )
        self.context_generator = EmbeddingGenerator(
            dim, config.n_head, start=start, spread=spread, name="context_generator"
        )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text`, `user`, `context` and `history` to logits (batch, time, ids).

        `history`, int32 (batch, any), are tokens that the user has written elsewhere, negative
        where there are none.
        """
        del training
        history = inputs["history"]
        mask = history >= 0
        words = self.base.embed(tf.maximum(history, 0))
        personal = self.personal_generator([self.personal_embedding(inputs["user"]), words, mask])
        context = self.context_generator([self.context_embedding(inputs["context"]), words, mask])
        return self.base.predict_tokens(self.base([inputs["text"], personal * context]))
