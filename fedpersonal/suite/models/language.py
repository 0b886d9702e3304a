"""A frozen language model with a vector of preferences (FedPerC: Silva et al., section 3.1).

Each client has a personal embedding, and each context an embedding that all clients share. Their
elementwise product replaces a text's first token; longer embeddings give several vectors. A
personal embedding can also be projected from a client's vector that was learnt elsewhere (after
Huber et al., "Embedding-to-Prefix", 2025).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2MainLayer

from fedpersonal.model.keras import keras
from fedpersonal.model.metrics import Metric
from fedpersonal.suite.models.tokens import count, token_losses


class FrozenGPT2(keras.layers.Layer):
    """GPT-2 without its head, which takes vectors in place of the first token.

    Its variables are those of transformers' `TFGPT2MainLayer`, in the same order.
    """

    def __init__(self, config: GPT2Config, **kwargs):
        super().__init__(trainable=False, **kwargs)
        self.transformer = TFGPT2MainLayer(config, name="transformer")
        self._start = config.bos_token_id

    def call(self, inputs, training=None):
        """Maps tokens (batch, time) and a prefix, or tokens alone, to hidden states.

        The prefix is a vector (batch, dim), or several (batch, length, dim). Without a prefix, the
        model's token for the start of a text is used.

        Returns:
            float32 (batch, time, dim): at each place the state before its token. The first place
            has the state after the prefix.
        """
        del training  # Dropout would make a frozen model's output random.
        if not self.transformer.built:
            _hidden_states(self.transformer, tf.zeros([1, 1, self.transformer.embed_dim]))
        tokens, prefix = inputs if isinstance(inputs, (list, tuple)) else (inputs, None)
        words = self.embed(tokens[:, :-1])
        if prefix is None:
            prefix = self.embed(tf.fill(tf.shape(tokens)[:1], self._start))
        if prefix.shape.rank == 2:
            prefix = prefix[:, tf.newaxis]
        hidden = _hidden_states(self.transformer, tf.concat([prefix, words], axis=1))
        return hidden if prefix.shape[1] == 1 else hidden[:, prefix.shape[1] - 1 :]

    def blocks(self) -> list[keras.layers.Layer]:
        """Returns the transformer's blocks."""
        self._create_variables()
        return self.transformer.h

    def embed(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns tokens' embeddings, without position embeddings."""
        self._create_variables()
        return tf.gather(self.transformer.wte.embeddings, tokens)

    def _create_variables(self) -> None:
        if not self.transformer.built:
            # Variables get their names when the layer is called.
            self(tf.zeros([1, 1], tf.int32))

    def predict_tokens(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits (..., ids) of the tied, frozen head."""
        return tf.matmul(hidden, self.transformer.wte.embeddings, transpose_b=True)


@tf.autograph.experimental.do_not_convert  # It is long, and branches on no tensor.
def _hidden_states(transformer: TFGPT2MainLayer, embeddings: tf.Tensor) -> tf.Tensor:
    return transformer(
        None, inputs_embeds=embeddings, use_cache=False, return_dict=True, training=False
    ).last_hidden_state


def frozen_values(layer: str, weights: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Names a base model's weights as the variables of a `FrozenGPT2` layer.

    Args:
        layer: The layer's name.
        weights: Name below `TFGPT2MainLayer` to value.
    """
    return {f"{layer}/transformer/{name}": value for name, value in weights.items()}


NAME = "language_model"
BASE = "base"
PERSONAL = "personal_embedding"
PROJECTION = "personal_projection"
CONTEXT = "context_embedding"
INPUT_SPEC = {
    "text": tf.TensorSpec([None, None], tf.int32),
    "user": tf.TensorSpec([None], tf.int32),
    "context": tf.TensorSpec([None], tf.int32),
}


class PrefixLanguageModel(keras.Model):
    """GPT-2 with the product of a personal and a context embedding as the first token."""

    def __init__(
        self,
        config: GPT2Config,
        *,
        num_contexts: int,
        start: np.ndarray,
        spread: float = 0.02,
        prefix_length: int = 1,
        num_users: int = 1,
        projects: bool = False,
    ):
        """Creates a model that, before training, predicts nearly as the base alone does.

        Args:
            config: The base's configuration.
            num_contexts: Number of contexts.
            start: float32 (dim,), the initial value of context embeddings: the base's embedding of
                a text's first token.
            spread: Standard deviation, around 1, of the initial values of personal embeddings.
            prefix_length: Number of vectors of an embedding.
            num_users: Rows of personal embeddings: 1, unless the server has those of all users.
            projects: Whether personal embeddings are projections of vectors that clients have; all
                clients share the projection.
        """
        super().__init__(name=NAME)
        near_one = keras.initializers.RandomNormal(mean=1.0, stddev=spread)
        self._length, size = prefix_length, prefix_length * config.n_embd
        start = np.tile(start, prefix_length)
        self._reads = "vector" if projects else "user"
        self.personal_embedding = (
            keras.layers.Dense(
                size,
                kernel_initializer=keras.initializers.RandomNormal(stddev=spread),
                bias_initializer="ones",
                name=PROJECTION,
            )
            if projects
            else keras.layers.Embedding(
                num_users, size, embeddings_initializer=near_one, name=PERSONAL
            )
        )
        self.context_embedding = keras.layers.Embedding(
            num_contexts,
            size,
            embeddings_initializer=lambda shape, dtype=None: tf.broadcast_to(start, shape),
            name=CONTEXT,
        )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time), `user` and `context` (batch,) to logits (batch, time, ids).

        With projections, the input `vector` (batch, numbers) replaces `user`.
        """
        del training
        personal = self.personal_embedding(inputs[self._reads])
        prefix = personal * self.context_embedding(inputs["context"])
        if self._length > 1:
            prefix = tf.reshape(prefix, [-1, self._length, prefix.shape[-1] // self._length])
        return self.base.predict_tokens(self.base([inputs["text"], prefix]))


class EmbeddingGenerator(keras.layers.Layer):
    """A transformer's decoder block with one embedding as its query, and words as its keys."""

    def __init__(self, dim: int, num_heads: int, *, start: np.ndarray, spread: float, **kwargs):
        """Takes sizes; before training, it returns about `start` (dim,) for any input."""
        super().__init__(**kwargs)
        self.attention = keras.layers.MultiHeadAttention(num_heads, dim // num_heads)
        self.norms = [keras.layers.LayerNormalization() for _ in range(4)]
        self.output_norm = keras.layers.LayerNormalization(
            gamma_initializer=keras.initializers.Constant(spread),
            beta_initializer=lambda shape, dtype=None: tf.broadcast_to(start, shape),
        )
        self.feed_forward = keras.Sequential(
            [keras.layers.Dense(4 * dim, activation="gelu"), keras.layers.Dense(dim)]
        )

    def call(self, inputs):
        """Maps an embedding (batch, dim), words (batch, time, dim) and a mask to (batch, dim)."""
        embedding, words, mask = inputs
        query = self.norms[0](embedding)[:, tf.newaxis]
        read = self.attention(query, words, attention_mask=mask[:, tf.newaxis])[:, 0]
        before = self.norms[1](embedding)
        # Without words, nothing is added.
        read = tf.where(tf.reduce_any(mask, -1)[:, tf.newaxis], read, 0.0)
        middle = self.norms[3](self.norms[2](read) + before)
        return self.output_norm(self.feed_forward(middle) + before)


class GeneratedPrefixModel(keras.Model):
    """GPT-2 with the product of a generated personal and a generated context embedding."""

    def __init__(
        self, config: GPT2Config, *, num_contexts: int, start: np.ndarray, spread: float = 0.02
    ):
        """Creates a model; the arguments are those of `PrefixLanguageModel`.

        `spread` is the initial distance of generated embeddings from `start` and from 1.
        """
        super().__init__(name=NAME)
        dim = config.n_embd
        normal = keras.initializers.RandomNormal(stddev=0.02)
        self.personal_embedding = keras.layers.Embedding(1, dim, "zeros", name=PERSONAL)
        self.context_embedding = keras.layers.Embedding(num_contexts, dim, normal, name=CONTEXT)
        self.personal_generator = EmbeddingGenerator(
            dim, config.n_head, start=np.ones_like(start), spread=spread, name="personal_generator"
        )
        self.context_generator = EmbeddingGenerator(
            dim, config.n_head, start=start, spread=spread, name="context_generator"
        )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text`, `user`, `context` and `history` to logits (batch, time, ids).

        `history`, int32 (batch, any), are tokens that the user has written elsewhere; padding is
        negative.
        """
        del training
        history = inputs["history"]
        mask = history >= 0
        words = self.base.embed(tf.maximum(history, 0))
        personal = self.personal_generator([self.personal_embedding(inputs["user"]), words, mask])
        context = self.context_generator([self.context_embedding(inputs["context"]), words, mask])
        return self.base.predict_tokens(self.base([inputs["text"], personal * context]))


PERSONAL_HEAD = "personal_head"
CONTEXT_HEAD = "context_head"
SHARED_HEAD = "head"
Initial = Callable[..., tf.Tensor]


class _Head(keras.layers.Layer):
    """A matrix (dim, ids)."""

    def __init__(self, shape: tuple[int, int], initial: Initial, **kwargs):
        super().__init__(**kwargs)
        self._shape, self._initial = shape, initial

    def build(self, _):
        # The variable gets the layer's name only here.
        self.kernel = self.add_weight("kernel", self._shape, initializer=self._initial)

    def call(self, hidden):
        return tf.matmul(hidden, self.kernel)


class HeadModel(keras.Model):
    """GPT-2 with one head, or, with contexts, with the mean of a personal and a context head."""

    def __init__(self, config: GPT2Config, *, initial: Initial, num_contexts: int | None = None):
        """Creates a model.

        Args:
            config: The base's configuration.
            initial: The initializer of its heads: of `copy_head_initializer` or
                `random_head_initializer`.
            num_contexts: Number of contexts; None for one head.
        """
        super().__init__(name=NAME)
        self._shape = (config.n_embd, config.vocab_size)
        name = SHARED_HEAD if num_contexts is None else PERSONAL_HEAD
        self.head = _Head(self._shape, initial, name=name)
        self.context_head = None
        if num_contexts is not None:
            size = config.n_embd * config.vocab_size
            self.context_head = keras.layers.Embedding(
                num_contexts, size, initial, name=CONTEXT_HEAD
            )
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) and `context` (batch,) to logits (batch, time, ids)."""
        del training
        hidden = self.base(inputs["text"])
        if self.context_head is None:
            return self.head(hidden)
        context_head = tf.reshape(self.context_head(inputs["context"]), [-1, *self._shape])
        return 0.5 * (self.head(hidden) + tf.matmul(hidden, context_head))


def copy_head_initializer(head: Callable[[], tf.Tensor]) -> Initial:
    """Returns an initializer of heads as copies of a matrix.

    Args:
        head: Returns the matrix, (dim, ids), in a graph.
    """

    def initial(shape: Sequence[int], dtype: tf.DType | None = None) -> tf.Tensor:
        del dtype
        matrix = head()
        count = tf.reduce_prod(shape) // tf.size(matrix)
        return tf.reshape(tf.tile(tf.reshape(matrix, [1, -1]), [count, 1]), shape)

    return initial


def random_head_initializer(config: GPT2Config) -> keras.initializers.Initializer:
    """Returns a random initializer of heads, the same as of GPT-2's matrices."""
    return keras.initializers.RandomNormal(stddev=config.initializer_range)


NO_TOKEN = -1


def count_utterance_tokens(labels: tf.Tensor) -> tf.Tensor:
    """Returns the number of tokens of each utterance, float32 (batch,)."""
    return count(labels >= 0)


def sum_utterance_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Sums the cross-entropy of each utterance's tokens; maps (batch, time, ids) to (batch,)."""
    return tf.reduce_sum(_token_losses(labels, logits), axis=1)


def perplexity(*, prompt_tokens: int = 3) -> Metric:
    """Returns the metric that is the perplexity of the tokens after an utterance's first ones.

    Args:
        prompt_tokens: Number of first tokens, which do not count (Silva et al., section 4).
    """

    def sum_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(_token_losses(labels, logits)[:, prompt_tokens:], axis=1)

    return Metric(
        "perplexity",
        sum_losses,
        finalize=lambda mean: math.e**mean,
        example_weight=lambda labels: count_utterance_tokens(labels[:, prompt_tokens:]),
    )


def _token_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Returns each token's cross-entropy, 0 for padding; computed once for loss and metrics."""
    losses = getattr(logits, "_token_losses", None)
    if losses is None:
        losses = logits._token_losses = token_losses(labels, logits, labels >= 0)
    return losses
