"""A frozen language model with heads that are trained: the baselines of FedPerC.

Split-Learning has a head for each client and one for each context (Silva et al., section 4 and
appendix B); Meta-Learning a single one. All start as the base model's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from fedpersonal.models.frozen_gpt2 import FrozenGPT2
from fedpersonal.models.prefix_language_model import BASE, NAME

PERSONAL_HEAD = "personal_head"
CONTEXT_HEAD = "context_head"
SHARED_HEAD = "head"


class _Head(tf.keras.layers.Layer):
    """A matrix (dim, ids)."""

    def __init__(self, shape: tuple[int, int], initial: Callable[..., tf.Tensor], **kwargs):
        super().__init__(**kwargs)
        self._shape, self._initial = shape, initial

    def build(self, _):
        # Not before: here the variable gets the layer's name.
        self.kernel = self.add_weight("kernel", self._shape, initializer=self._initial)

    def call(self, hidden):
        return tf.matmul(hidden, self.kernel)


class SplitHeadModel(tf.keras.Model):
    """GPT-2 under the mean of a personal and a context head."""

    def __init__(self, config: Any, *, num_contexts: int, head: Callable[[], tf.Tensor]):
        """See `split_head_model`."""
        super().__init__(name=NAME)
        self._shape = (config.n_embd, config.vocab_size)
        self.personal_head = _Head(self._shape, lambda *_, **__: head(), name=PERSONAL_HEAD)
        self.context_head = tf.keras.layers.Embedding(
            num_contexts,
            config.n_embd * config.vocab_size,
            embeddings_initializer=lambda shape, dtype=None: tf.broadcast_to(
                tf.reshape(head(), [-1]), shape
            ),
            name=CONTEXT_HEAD,
        )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) and `context` (batch,) to logits (batch, time, ids)."""
        del training
        hidden = self.base(inputs["text"])
        of_context = tf.reshape(self.context_head(inputs["context"]), [-1, *self._shape])
        return 0.5 * (self.personal_head(hidden) + tf.matmul(hidden, of_context))


class SharedHeadModel(tf.keras.Model):
    """GPT-2 under one head."""

    def __init__(self, config: Any, *, head: Callable[[], tf.Tensor]):
        """See `shared_head_model`."""
        super().__init__(name=NAME)
        shape = (config.n_embd, config.vocab_size)
        self.head = _Head(shape, lambda *_, **__: head(), name=SHARED_HEAD)
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) to logits (batch, time, ids)."""
        del training
        return self.head(self.base(inputs["text"]))


def split_head_model(
    config: Any, *, num_contexts: int, head: Callable[[], tf.Tensor]
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of a `SplitHeadModel`.

    Args:
        config: The base's `transformers.GPT2Config`.
        num_contexts: How many contexts there are.
        head: Returns, in a graph, the head (dim, ids) with which all start.
    """
    return lambda: SplitHeadModel(config, num_contexts=num_contexts, head=head)


def shared_head_model(
    config: Any, *, head: Callable[[], tf.Tensor]
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of a `SharedHeadModel`.

    Args:
        config: The base's `transformers.GPT2Config`.
        head: Returns, in a graph, the head (dim, ids) with which it starts.
    """
    return lambda: SharedHeadModel(config, head=head)
