"""A frozen language model with heads that are trained: the baselines of FedPerC.

Split-Learning has a head for each client and one for each context (Silva et al., section 4 and
appendix B); Meta-Learning a single one. The paper does not say how they start: as the base model's
own, or as a layer that has been trained on nothing.
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

    def __init__(self, config: Any, *, num_contexts: int, initial: Callable[..., tf.Tensor]):
        """See `split_head_model`."""
        super().__init__(name=NAME)
        self._shape = (config.n_embd, config.vocab_size)
        self.personal_head = _Head(self._shape, initial, name=PERSONAL_HEAD)
        self.context_head = tf.keras.layers.Embedding(
            num_contexts,
            config.n_embd * config.vocab_size,
            embeddings_initializer=initial,
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

    def __init__(self, config: Any, *, initial: Callable[..., tf.Tensor]):
        """See `shared_head_model`."""
        super().__init__(name=NAME)
        shape = (config.n_embd, config.vocab_size)
        self.head = _Head(shape, initial, name=SHARED_HEAD)
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) to logits (batch, time, ids)."""
        del training
        return self.head(self.base(inputs["text"]))


def as_base(head: Callable[[], tf.Tensor]) -> Callable[..., tf.Tensor]:
    """Returns an initializer of heads that all start as the base model's own.

    Args:
        head: Returns, in a graph, the base's head (dim, ids).
    """

    def initial(shape: Any, dtype: Any = None) -> tf.Tensor:
        del dtype
        matrix = head()
        count = tf.reduce_prod(shape) // tf.size(matrix)
        return tf.reshape(tf.tile(tf.reshape(matrix, [1, -1]), [count, 1]), shape)

    return initial


def fresh(config: Any) -> tf.keras.initializers.Initializer:
    """Returns an initializer of heads that start at random, as GPT-2's matrices do.

    Args:
        config: The base's `transformers.GPT2Config`.
    """
    return tf.keras.initializers.RandomNormal(stddev=config.initializer_range)


def split_head_model(
    config: Any, *, num_contexts: int, initial: Callable[..., tf.Tensor]
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of a `SplitHeadModel`.

    Args:
        config: The base's `transformers.GPT2Config`.
        num_contexts: How many contexts there are.
        initial: Initializer of the heads, such as `fresh`.
    """
    return lambda: SplitHeadModel(config, num_contexts=num_contexts, initial=initial)


def shared_head_model(
    config: Any, *, initial: Callable[..., tf.Tensor]
) -> Callable[[], tf.keras.Model]:
    """Returns a builder of a `SharedHeadModel`.

    Args:
        config: The base's `transformers.GPT2Config`.
        initial: Initializer of the head, such as `fresh`.
    """
    return lambda: SharedHeadModel(config, initial=initial)
