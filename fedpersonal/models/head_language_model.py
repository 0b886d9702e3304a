"""A frozen language model with heads that are trained: the baselines of FedPerC.

Split-Learning has a head for each client and one for each context (Silva et al., section 4 and
appendix B); Meta-Learning a single one. The paper does not say how they start: as the base model's
own, or as a layer that has been trained on nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from fedpersonal.models.frozen_gpt2 import FrozenGPT2
from fedpersonal.models.prefix_language_model import BASE, NAME

PERSONAL_HEAD = "personal_head"
CONTEXT_HEAD = "context_head"
SHARED_HEAD = "head"
Initial = Callable[..., tf.Tensor]


class _Head(tf.keras.layers.Layer):
    """A matrix (dim, ids)."""

    def __init__(self, shape: tuple[int, int], initial: Initial, **kwargs):
        super().__init__(**kwargs)
        self._shape, self._initial = shape, initial

    def build(self, _):
        # Not before: here the variable gets the layer's name.
        self.kernel = self.add_weight("kernel", self._shape, initializer=self._initial)

    def call(self, hidden):
        return tf.matmul(hidden, self.kernel)


class HeadModel(tf.keras.Model):
    """GPT-2 under one head, or, with contexts, under the mean of a personal and a context head."""

    def __init__(self, config: GPT2Config, *, initial: Initial, num_contexts: int | None = None):
        """Makes a model; `initial` is the initializer of its heads: `as_base` or `fresh`."""
        super().__init__(name=NAME)
        self._shape = (config.n_embd, config.vocab_size)
        name = SHARED_HEAD if num_contexts is None else PERSONAL_HEAD
        self.head = _Head(self._shape, initial, name=name)
        self.context_head = None
        if num_contexts is not None:
            size = config.n_embd * config.vocab_size
            self.context_head = tf.keras.layers.Embedding(
                num_contexts, size, initial, name=CONTEXT_HEAD
            )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) and `context` (batch,) to logits (batch, time, ids)."""
        del training
        hidden = self.base(inputs["text"])
        if self.context_head is None:
            return self.head(hidden)
        of_context = tf.reshape(self.context_head(inputs["context"]), [-1, *self._shape])
        return 0.5 * (self.head(hidden) + tf.matmul(hidden, of_context))


def as_base(head: Callable[[], tf.Tensor]) -> Initial:
    """Returns an initializer of heads that start as what `head` returns in a graph, (dim, ids)."""

    def initial(shape: Sequence[int], dtype: tf.DType | None = None) -> tf.Tensor:
        del dtype
        matrix = head()
        count = tf.reduce_prod(shape) // tf.size(matrix)
        return tf.reshape(tf.tile(tf.reshape(matrix, [1, -1]), [count, 1]), shape)

    return initial


def fresh(config: GPT2Config) -> tf.keras.initializers.Initializer:
    """Returns an initializer of heads that start at random, as GPT-2's matrices do."""
    return tf.keras.initializers.RandomNormal(stddev=config.initializer_range)
