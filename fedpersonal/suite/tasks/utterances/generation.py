"""Generates texts in the style of a user and a context (FedPerC, Table 4)."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.randomness import Purpose, generator
from fedpersonal.suite.models.gpt2 import BaseModel


def find_name(kind: str, name: str, names: Sequence[str]) -> int:
    """Returns the index of a name, ignoring case if there is no exact match.

    Args:
        kind: The kind of name, for the error.
        name: The name.
        names: All names.

    Raises:
        UserError: If there is no such name; the error suggests similar names.
    """
    if name in names:
        return names.index(name)
    folded = [other.casefold() for other in names]
    if name.casefold() in folded:
        return folded.index(name.casefold())
    near = difflib.get_close_matches(name.casefold(), folded, n=3, cutoff=0.3)
    offered = [names[folded.index(other)] for other in near] or list(names[:3])
    raise UserError(
        f"--{kind}={name!r} is unknown; did you mean {' or '.join(map(repr, offered))}?"
    )


def generate(
    model: PartitionedModel,
    base: BaseModel,
    values: Mapping[str, np.ndarray],
    *,
    context: int,
    prompt: str,
    num_texts: int = 3,
    max_tokens: int = 24,
    temperature: float = 0.7,
    top_k: int = 40,
    seed: int = 0,
) -> list[str]:
    """Generates continuations of a prompt.

    Args:
        model: A model whose inputs are `text`, `user` and `context`.
        base: The base model around which it is built.
        values: The model's global variables, and one client's local ones, by name.
        context: The index of the context.
        prompt: The beginning of each text.
        num_texts: The number of texts, >= 1.
        max_tokens: Tokens of a text, including the prompt.
        temperature: The divisor of logits, > 0.
        top_k: The number of most likely tokens from which each token is sampled, >= 1.
        seed: Seed of the samples.

    Returns:
        The texts, each with the prompt.

    Raises:
        UserError: If the prompt is longer than a text, or the model's positions.
    """
    places = min(max_tokens, base.config.n_positions)
    tokens = base.tokenizer(prompt, verbose=False)["input_ids"]
    if len(tokens) >= places:
        raise UserError(
            f"--prompt has {len(tokens)} tokens; at most {places - 1} leave room for more"
        )

    @tf.function(autograph=False, reduce_retracing=True)
    def next_logits(text: tf.Tensor) -> tf.Tensor:
        batch = tf.shape(text)[:1]
        features = {
            "text": tf.pad(text, [[0, 0], [0, 1]]),
            "user": tf.zeros(batch, tf.int32),
            "context": tf.fill(batch, context),
        }
        constants = {name: tf.constant(value) for name, value in values.items()}
        return model.predict(constants, features, training=False)[0][:, -1]

    random = generator(Purpose.WRITTEN_TEXTS, seed)
    texts = np.tile(np.array(tokens, np.int32).reshape(1, -1), [num_texts, 1])
    end = base.config.eos_token_id
    while texts.shape[1] < places and not (texts == end).any(1).all():
        logits = next_logits(tf.constant(texts)).numpy() / temperature
        logits[logits < np.partition(logits, -top_k)[:, [-top_k]]] = -np.inf
        sampled = (logits + random.gumbel(size=logits.shape)).argmax(1)
        texts = np.concatenate([texts, sampled.astype(np.int32)[:, np.newaxis]], axis=1)
    return [
        base.tokenizer.decode(text[: int(np.argmax(text == end)) if (text == end).any() else None])
        for text in texts
    ]
