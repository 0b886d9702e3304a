"""Loss and perplexity of utterances. An utterance counts as its tokens.

Labels are int32 (batch, time): the token at each place, `NOTHING` where there is none.
"""

from __future__ import annotations

import math

import tensorflow as tf

from fedpersonal.model.metrics import Metric
from fedpersonal.models.token_prediction import count, token_losses

NOTHING = -1


def count_utterance_tokens(labels: tf.Tensor) -> tf.Tensor:
    """Maps labels to how many tokens each utterance has, float32 (batch,)."""
    return count(labels >= 0)


def sum_utterance_losses(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """Sums the cross-entropy of each utterance's tokens, of logits (batch, time, ids): (batch,)."""
    return tf.reduce_sum(_token_losses(labels, logits), axis=1)


def perplexity(*, prompt_tokens: int = 3) -> Metric:
    """Returns the perplexity of a token that follows an utterance's first ones.

    Args:
        prompt_tokens: How many first tokens are given, and not counted (Silva et al., section 4).
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
    """Returns each token's cross-entropy, 0 where there is none; computed once for all that ask."""
    known = getattr(logits, "_token_losses", None)
    if known is None:
        known = logits._token_losses = token_losses(labels, logits, labels >= 0)
    return known
