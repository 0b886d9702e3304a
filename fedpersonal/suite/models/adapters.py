"""A frozen language model with small additional parts, each shared or personal.

Before training, the parts do not change the base's logits. A part is one of:

- `bias`, a number for each id, added to the logits.
- `head`, a matrix added to the base's head.
- `prefix`, vectors in the place of a text's first token (Lester et al., "The Power of Scale for
  Parameter-Efficient Prompt Tuning", EMNLP 2021). More than one vector does change the logits
  before training.
- `layer_prefix`, keys and values in each block (Li and Liang, "Prefix-Tuning", ACL 2021), with a
  separate softmax, so that values of zero change nothing (Zhang et al., "LLaMA-Adapter", ICLR
  2024, section 3.2).
- `lora_a` and `lora_b`, the factors of a matrix of low rank, added to the matrix that computes
  queries, keys and values, or to each matrix of a block (Hu et al., "LoRA", ICLR 2022). Without
  `lora_a` the first factor is sampled once and frozen (Sun et al., "Improving LoRA in
  Privacy-preserving Federated Learning", ICLR 2024).
- `own_lora_a` and `own_lora_b`, the factors of a second such matrix, whose product is added to
  that of the first (Yang et al., "Dual-Personalizing Adapter", NeurIPS 2024).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config

from fedpersonal.model.keras import keras
from fedpersonal.suite.models.language import BASE, NAME, FrozenGPT2

SHARED, LOCAL = "shared", "personal"
_FROZEN_SEED = (7, 11)
_KEY_DEVIATION = 0.5


class AdaptedLanguageModel(keras.Model):
    """GPT-2 with additional parts."""

    def __init__(
        self,
        config: GPT2Config,
        *,
        parts: Mapping[str, str],
        start: np.ndarray,
        prefix_length: int = 1,
        lora_rank: int = 8,
        lora_matrices: str = "qkv",
        num_users: int = 1,
    ):
        """Creates a model that, before training, predicts as the base does.

        Args:
            config: The base's configuration.
            parts: A part's name to `shared` or `personal`. Its layer is called "shared_bias", and
                so on.
            start: float32 (dim,), the base's embedding of a text's first token.
            prefix_length: Number of vectors of a `prefix` and a `layer_prefix`.
            lora_rank: Number of columns of `lora_a`, and of rows of `lora_b`.
            lora_matrices: The matrices of a block that LoRA adds to: `qkv` for the one that
                computes queries, keys and values, `all` for all four.
            num_users: Rows of personal parts: 1, unless the server has those of all users.
        """
        super().__init__(name=NAME)
        dim, blocks = config.n_embd, config.n_layer
        self._adapted = _matrices(config)[lora_matrices]
        num_inputs, num_outputs = (sum(sizes) for sizes in zip(*self._adapted.values()))
        self._deviation = dim**-0.5
        normal = keras.initializers.RandomNormal(stddev=self._deviation)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "bias": ((config.vocab_size,), "zeros"),
            "head": ((dim, config.vocab_size), "zeros"),
            "prefix": ((prefix_length, dim), "zeros"),
            "layer_prefix": ((2, blocks, prefix_length, dim), _RandomKeys(stddev=_KEY_DEVIATION)),
            "lora_a": ((blocks, num_inputs, lora_rank), normal),
            "lora_b": ((blocks, lora_rank, num_outputs), "zeros"),
        }
        shapes.update({f"own_{kind}": shapes[kind] for kind in ("lora_a", "lora_b")})
        self._shapes = {kind: shapes[kind][0] for kind in ("lora_a", *parts)}
        # As lookups, like FedPerC's embeddings, personal parts of several clients are trained in
        # one pass.
        self._parts = {
            kind: keras.layers.Embedding(
                num_users,
                int(np.prod(shapes[kind][0])),
                shapes[kind][1],
                name=layer_name(kind, scope),
            )
            if scope == LOCAL
            else _Shared(*shapes[kind], name=layer_name(kind, scope))
            for kind, scope in parts.items()
        }
        self._start = start
        self.base = FrozenGPT2(config, name=BASE)

    def call(self, inputs, training=None):
        """Maps `text` (batch, time) and `user` (batch,) to logits (batch, time, ids)."""
        del training
        users = inputs["user"]
        # Shared parts have one row, for all examples.
        values = {
            kind: tf.reshape(part(users), [-1, *self._shapes[kind]])
            for kind, part in self._parts.items()
        }
        blocks = self.base.blocks()
        if "lora_b" in values:
            factors = (tf.unstack(v, axis=1) for v in self._factors(values))
            num_inputs, num_outputs = zip(*self._adapted.values())
            for block, a, b in zip(blocks, *factors):
                pairs = zip(tf.split(a, num_inputs, axis=1), tf.split(b, num_outputs, axis=2))
                for name, pair in zip(self._adapted, pairs):
                    layer = operator.attrgetter(name)(block)
                    layer.call = functools.partial(_low_rank, layer, *pair)
        if "layer_prefix" in values:
            pairs = tf.unstack(values["layer_prefix"], axis=1)
            for block, *prefix in zip(blocks, *(tf.unstack(pair, axis=1) for pair in pairs)):
                block.attn._attn = functools.partial(_attend_prefix, block.attn, *prefix)
        text: Any = inputs["text"]
        if "prefix" in values:
            prefix = self._start + values["prefix"]
            count = tf.shape(text)[0] // tf.shape(prefix)[0]
            text = [text, tf.repeat(prefix, count, axis=0)]
        hidden = self.base(text)
        logits = self.base.predict_tokens(hidden)
        if "head" in values:
            logits += tf.matmul(hidden, values["head"])
        if "bias" in values:
            logits += values["bias"][:, tf.newaxis]
        return logits

    def _factors(self, values: Mapping[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns `lora_a` and `lora_b`, with the factors of a second matrix as further ranks."""
        a, b = self._lora_a(values), values["lora_b"]
        if "own_lora_b" not in values:
            return a, b
        second = values["own_lora_a"], values["own_lora_b"]
        count = tf.shape(second[0])[0]  # Shared factors have one row.
        a, b = (tf.repeat(one, count // tf.shape(one)[0], axis=0) for one in (a, b))
        return tf.concat([a, second[0]], axis=-1), tf.concat([b, second[1]], axis=-2)

    def _lora_a(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns `lora_a`, (1 or batch, blocks, matrix inputs, rank), or the frozen one."""
        if "lora_a" in values:
            return values["lora_a"]
        shape = self._shapes["lora_a"]
        return tf.random.stateless_normal([1, *shape], _FROZEN_SEED, stddev=self._deviation)


def local_layers(parts: Mapping[str, str]) -> list[str]:
    """Returns the names of the layers of personal parts."""
    return [layer_name(kind, scope) for kind, scope in parts.items() if scope == LOCAL]


def layer_name(kind: str, scope: str) -> str:
    """Returns the name of a part's layer; the scope is `shared` or `personal`."""
    return f"{scope}_{kind}"


def _matrices(config: GPT2Config) -> dict[str, dict[str, tuple[int, int]]]:
    """Returns the matrices of a block that LoRA may add to: their numbers of inputs and outputs."""
    dim = config.n_embd
    inner = config.n_inner or 4 * dim
    qkv = {"attn.c_attn": (dim, 3 * dim)}
    others = {
        "attn.c_proj": (dim, dim),
        "mlp.c_fc": (dim, inner),
        "mlp.c_proj": (inner, dim),
    }
    return {"qkv": qkv, "all": {**qkv, **others}}


class _Shared(keras.layers.Layer):
    """A part that all examples share."""

    def __init__(self, shape: tuple[int, ...], initial: Any, **kwargs):
        super().__init__(**kwargs)
        self._shape, self._initial = shape, initial

    def build(self, _):
        # The variable gets the layer's name only here.
        self.kernel = self.add_weight("kernel", self._shape, initializer=self._initial)

    def call(self, users):
        del users
        return tf.convert_to_tensor(self.kernel)


class _RandomKeys(keras.initializers.RandomNormal):
    """Samples the first half of a row's numbers, the keys; the second half, the values, is 0."""

    def __call__(self, shape, dtype=None, **kwargs):
        normal = super().__call__(shape, dtype=dtype, **kwargs)
        # A shared part is one row.
        rows = shape[0] if len(shape) == 2 else 1
        halves = tf.reshape(normal, [rows, 2, -1]) * [[[1.0], [0.0]]]
        return tf.reshape(halves, shape)


@tf.autograph.experimental.do_not_convert  # Nothing in it branches on tensors.
def _low_rank(layer: keras.layers.Layer, a: tf.Tensor, b: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Applies a block's matrix and adds the product with `a` (1 or batch, inputs, rank), `b`."""
    return type(layer).call(layer, x) + tf.matmul(tf.matmul(x, a), b)


@tf.autograph.experimental.do_not_convert
def _attend_prefix(
    layer: keras.layers.Layer,
    keys: tf.Tensor,
    values: tf.Tensor,
    query: tf.Tensor,
    *others: Any,
    **options: Any,
) -> list[tf.Tensor]:
    """Attends to words as the layer does, and adds the attention to the prefix alone.

    Keys and values are (1 or batch, length, dim), the query (batch, heads, time, dim / heads).
    """
    attended, *rest = type(layer)._attn(layer, query, *others, **options)
    keys, values = layer.split_heads(keys), layer.split_heads(values)
    scores = tf.matmul(query, keys, transpose_b=True) * keys.shape[-1] ** -0.5
    return [attended + tf.matmul(tf.nn.softmax(scores), values), *rest]
