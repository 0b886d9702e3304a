"""A frozen language model with small parts beside its weights, shared by all or each client's own.

Untrained, they leave the base's logits as they are. A part is one of:

- `bias`, a number for each id, added to the logits.
- `head`, a matrix added to the base's head.
- `prefix`, vectors in the place of a text's first token (Lester et al., "The Power of Scale for
  Parameter-Efficient Prompt Tuning", EMNLP 2021). More than one do change untrained logits.
- `layer_prefix`, keys and values in each block (Li and Liang, "Prefix-Tuning", ACL 2021), with a
  softmax of their own, so that values of zero change nothing (Zhang et al., "LLaMA-Adapter", ICLR
  2024, section 3.2).
- `lora_a` and `lora_b`, the factors of a matrix of low rank, added to the one that makes queries,
  keys and values, or to each matrix of a block (Hu et al., "LoRA", ICLR 2022). Without a `lora_a`
  it is drawn once for all and frozen (Sun et al., "Improving LoRA in Privacy-preserving Federated
  Learning", ICLR 2024).
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
from fedpersonal.models.language import BASE, NAME, FrozenGPT2

SHARED, LOCAL = "shared", "personal"
_FROZEN_SEED = (7, 11)
_KEY_DEVIATION = 0.5


class AdaptedLanguageModel(keras.Model):
    """GPT-2 with parts beside its weights."""

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
        """Makes a model that untrained predicts as the base does.

        Args:
            config: That of the base.
            parts: A part's name to `shared` or `personal`. Its layer is called "shared_bias", and
                so on.
            start: float32 (dim,), the base's own embedding of a text's first token.
            prefix_length: How many vectors a `prefix` and a `layer_prefix` have.
            lora_rank: Columns of `lora_a`, and rows of `lora_b`.
            lora_matrices: Those of a block that LoRA adds to: `qkv` for the one that makes
                queries, keys and values, `all` for all four.
            num_users: Rows of personal parts: one, unless a server has those of all.
        """
        super().__init__(name=NAME)
        dim, blocks = config.n_embd, config.n_layer
        self._adapted = _matrices(config)[lora_matrices]
        read, made = (sum(sizes) for sizes in zip(*self._adapted.values()))
        self._deviation = dim**-0.5
        a_drawn = keras.initializers.RandomNormal(stddev=self._deviation)
        shapes: dict[str, tuple[tuple[int, ...], Any]] = {
            "bias": ((config.vocab_size,), "zeros"),
            "head": ((dim, config.vocab_size), "zeros"),
            "prefix": ((prefix_length, dim), "zeros"),
            "layer_prefix": ((2, blocks, prefix_length, dim), _KeysDrawn(stddev=_KEY_DEVIATION)),
            "lora_a": ((blocks, read, lora_rank), a_drawn),
            "lora_b": ((blocks, lora_rank, made), "zeros"),
        }
        shapes.update({f"own_{kind}": shapes[kind] for kind in ("lora_a", "lora_b")})
        self._shapes = {kind: shapes[kind][0] for kind in ("lora_a", *parts)}
        # Looked up like FedPerC's embeddings, own parts of many clients are trained in one pass.
        self._parts = {
            kind: keras.layers.Embedding(
                num_users,
                int(np.prod(shapes[kind][0])),
                shapes[kind][1],
                name=layer_name(kind, whose),
            )
            if whose == LOCAL
            else _Shared(*shapes[kind], name=layer_name(kind, whose))
            for kind, whose in parts.items()
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
            read, made = zip(*self._adapted.values())
            for block, a, b in zip(blocks, *factors):
                pairs = zip(tf.split(a, read, axis=1), tf.split(b, made, axis=2))
                for name, pair in zip(self._adapted, pairs):
                    layer = operator.attrgetter(name)(block)
                    layer.call = functools.partial(_low_rank, layer, *pair)
        if "layer_prefix" in values:
            pairs = tf.unstack(values["layer_prefix"], axis=1)
            for block, *own in zip(blocks, *(tf.unstack(pair, axis=1) for pair in pairs)):
                block.attn._attn = functools.partial(_attend_prefix, block.attn, *own)
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
        """Returns what `lora_a` and `lora_b` are, with the own factors as further ranks."""
        a, b = self._lora_a(values), values["lora_b"]
        if "own_lora_b" not in values:
            return a, b
        own = values["own_lora_a"], values["own_lora_b"]
        count = tf.shape(own[0])[0]  # Shared ones have one row.
        a, b = (tf.repeat(one, count // tf.shape(one)[0], axis=0) for one in (a, b))
        return tf.concat([a, own[0]], axis=-1), tf.concat([b, own[1]], axis=-2)

    def _lora_a(self, values: Mapping[str, tf.Tensor]) -> tf.Tensor:
        """Returns (1 or batch, blocks, what the matrices read, rank), or the frozen one."""
        if "lora_a" in values:
            return values["lora_a"]
        shape = self._shapes["lora_a"]
        return tf.random.stateless_normal([1, *shape], _FROZEN_SEED, stddev=self._deviation)


def own_layers(parts: Mapping[str, str]) -> list[str]:
    """Returns the names of the layers of personal parts."""
    return [layer_name(kind, whose) for kind, whose in parts.items() if whose == LOCAL]


def layer_name(kind: str, whose: str) -> str:
    """Returns the name of a part's layer."""
    return f"{whose}_{kind}"


def _matrices(config: GPT2Config) -> dict[str, dict[str, tuple[int, int]]]:
    """Returns the matrices of a block that LoRA may add to: numbers that each reads and makes."""
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
        # Not before: here the variable gets the layer's name.
        self.kernel = self.add_weight("kernel", self._shape, initializer=self._initial)

    def call(self, users):
        del users
        return tf.convert_to_tensor(self.kernel)


class _KeysDrawn(keras.initializers.RandomNormal):
    """Draws the first half of a row's numbers, the keys; values start at zero."""

    def __call__(self, shape, dtype=None, **kwargs):
        drawn = super().__call__(shape, dtype=dtype, **kwargs)
        # A shared part is one row.
        rows = shape[0] if len(shape) == 2 else 1
        halves = tf.reshape(drawn, [rows, 2, -1]) * [[[1.0], [0.0]]]
        return tf.reshape(halves, shape)


@tf.autograph.experimental.do_not_convert  # Nothing in it branches on tensors.
def _low_rank(layer: keras.layers.Layer, a: tf.Tensor, b: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    """Does what a block's matrix does and adds that of `a` (1 or batch, inputs, rank) and `b`."""
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
    """Attends to words as ever, and adds what attention to the prefix alone finds.

    Keys and values are (1 or batch, length, dim), the query (batch, heads, time, dim / heads).
    """
    found, *rest = type(layer)._attn(layer, query, *others, **options)
    keys, values = layer.split_heads(keys), layer.split_heads(values)
    scores = tf.matmul(query, keys, transpose_b=True) * keys.shape[-1] ** -0.5
    return [found + tf.matmul(tf.nn.softmax(scores), values), *rest]
