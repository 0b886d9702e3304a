"""HuggingFace's GPT-2 as a Keras layer that is to be frozen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf
from transformers.models.gpt2.configuration_gpt2 import GPT2Config
from transformers.models.gpt2.modeling_tf_gpt2 import TFGPT2MainLayer


class FrozenGPT2(tf.keras.layers.Layer):
    """GPT-2 without its head, with vectors of one's own in the place of the first token.

    Its variables are those of transformers' `TFGPT2MainLayer`, in its order.
    """

    def __init__(self, config: GPT2Config, **kwargs):
        super().__init__(trainable=False, **kwargs)
        self.transformer = TFGPT2MainLayer(config, name="transformer")
        self._start = config.bos_token_id

    def call(self, inputs, training=None):
        """Maps tokens (batch, time) and a prefix, or tokens alone, to hidden states.

        The prefix is a vector (batch, dim), or several (batch, length, dim). Without one the
        model's token of a text's start takes its place.

        Returns:
            float32 (batch, time, dim): at each place what comes before the token there, the prefix
            first.
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

    def blocks(self) -> list[tf.keras.layers.Layer]:
        """Returns the transformer's blocks."""
        self._create_variables()
        return self.transformer.h

    def embed(self, tokens: tf.Tensor) -> tf.Tensor:
        """Returns tokens' embeddings, without those of places."""
        self._create_variables()
        return tf.gather(self.transformer.wte.embeddings, tokens)

    def _create_variables(self) -> None:
        if not self.transformer.built:
            # They get their names where the layer is called.
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
