"""Loss and perplexity of utterances, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.model.metrics import finalize
from fedpersonal.models.language import (
    NOTHING,
    count_utterance_tokens,
    perplexity,
    sum_utterance_losses,
)

IDS = 7
# Of 6, 4, 3 and no tokens; an id of 0 is a token as any other.
LENGTHS = (6, 4, 3, 0)


def draw():
    random = np.random.default_rng(1)
    labels = random.integers(0, IDS, [4, 6]).astype(np.int32)
    labels[0, 4] = 0
    for row, length in zip(labels, LENGTHS):
        row[length:] = NOTHING
    return labels, 2 * random.normal(size=[4, 6, IDS]).astype(np.float32)


def numpy_losses(labels, logits):
    """Each token's loss, NaN where there is none."""
    log_probabilities = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_probabilities, np.maximum(labels, 0)[..., None], -1)[..., 0]
    return np.where(labels >= 0, losses, np.nan)


def test_the_loss_is_the_sum_over_tokens():
    labels, logits = draw()
    expected = np.nansum(numpy_losses(labels, logits), axis=1)
    losses = sum_utterance_losses(tf.constant(labels), tf.constant(logits))
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    counts = count_utterance_tokens(tf.constant(labels))
    assert counts.dtype == tf.float32 and counts.numpy().tolist() == list(LENGTHS)


def test_gradients_are_those_of_tensorflows_own_loss():
    labels, logits = draw()
    logits, mask = tf.constant(logits), tf.constant(labels >= 0)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(logits)
        own = tf.reduce_sum(sum_utterance_losses(tf.constant(labels), logits))
        others = tf.nn.sparse_softmax_cross_entropy_with_logits(np.maximum(labels, 0), logits)
        other = tf.reduce_sum(tf.where(mask, others, 0.0))
    expected = tape.gradient(other, logits)
    np.testing.assert_allclose(tape.gradient(own, logits), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("prompt_tokens", [3, 1])
def test_perplexity_is_of_what_follows_the_first_tokens(prompt_tokens):
    labels, logits = draw()
    losses = numpy_losses(labels, logits)[:, prompt_tokens:]
    metric = perplexity() if prompt_tokens == 3 else perplexity(prompt_tokens=prompt_tokens)
    values = metric.example_value(tf.constant(labels), tf.constant(logits)).numpy()
    weights = metric.example_weight(tf.constant(labels)).numpy()
    assert weights.tolist() == [max(0, length - prompt_tokens) for length in LENGTHS]
    found = finalize([metric], {"perplexity": [values.sum(), weights.sum()]})
    assert found["perplexity"] == pytest.approx(np.exp(np.nanmean(losses)), rel=1e-5)
    # What is given does not count.
    logits[:, :prompt_tokens] = 100 * np.arange(IDS)
    others = metric.example_value(tf.constant(labels), tf.constant(logits)).numpy()
    np.testing.assert_allclose(others, values, rtol=1e-6)


def test_equal_logits_have_a_perplexity_of_the_number_of_ids():
    labels, _ = draw()
    metric = perplexity()
    value = metric.example_value(tf.constant(labels), tf.zeros([4, 6, IDS])).numpy().sum()
    weight = metric.example_weight(tf.constant(labels)).numpy().sum()
    assert metric.finalize(value / weight) == pytest.approx(IDS, rel=1e-5)
