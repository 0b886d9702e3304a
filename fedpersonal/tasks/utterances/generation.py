"""Texts as a user would write them in some context (FedPerC, Table 4)."""

from __future__ import annotations

import dataclasses
import difflib
import os
import pathlib
import zipfile
from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.language_models.base_model import BaseModel
from fedpersonal.model.partition import PartitionedModel


@dataclasses.dataclass(frozen=True, eq=False)
class Trained:
    """What a run of FedPerC has trained.

    Attributes:
        global_values: Global variable's name to value.
        local_values: Local variable's name to (num_clients, ...).
        clients: (num_clients,) names.
        contexts: (num_contexts,) names.
    """

    global_values: dict[str, np.ndarray]
    local_values: dict[str, np.ndarray]
    clients: np.ndarray
    contexts: np.ndarray


def read_trained(path: str | os.PathLike) -> Trained:
    """Reads what an experiment has written.

    Args:
        path: The file.

    Raises:
        UserError: If there is none, or it cannot be read, or nobody has kept anything.
    """
    path = pathlib.Path(path)
    try:
        with np.load(path) as file:
            columns = dict(file)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; --run_dir must be a run that has ended") from None
    except (OSError, EOFError, ValueError, zipfile.BadZipFile) as error:
        raise UserError(f"{path} cannot be read ({error})") from None
    if "clients" not in columns:
        raise UserError(f"{path}: users of this run keep no embedding; --algorithm=fedperc does")
    known = columns["known"]

    def part(prefix: str) -> dict[str, np.ndarray]:
        return {k[len(prefix) :]: v for k, v in columns.items() if k.startswith(prefix)}

    return Trained(
        part("global/"),
        {k: v[known] for k, v in part("local/").items()},
        columns["clients"][known],
        columns["contexts"],
    )


def find_name(kind: str, name: str, names: Sequence[str]) -> int:
    """Returns where a name stands; in whatever case, where none is just so.

    Args:
        kind: What is named, for the error.
        name: The name.
        names: All names.

    Raises:
        UserError: If it is none of them; the nearest ones are offered.
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
    trained: Trained,
    *,
    user: int,
    context: int,
    prompt: str,
    num_texts: int = 3,
    max_tokens: int = 24,
    temperature: float = 0.7,
    top_k: int = 40,
    seed: int = 0,
) -> list[str]:
    """Goes on with a prompt.

    Args:
        model: A model whose inputs are `text`, `user` and `context`.
        base: The base model around which it is built.
        trained: Its variables.
        user: Which client's embedding to use.
        context: Which context's.
        prompt: The beginning.
        num_texts: How many texts, >= 1.
        max_tokens: Tokens of a text, the prompt's among them.
        temperature: By which logits are divided, > 0.
        top_k: Tokens among which each is drawn, >= 1.
        seed: Seed of the draws.

    Returns:
        The texts, with the prompt.

    Raises:
        UserError: If the prompt is longer than a text, or the model's positions.
    """
    places = min(max_tokens, base.config.n_positions)
    tokens = base.tokenizer(prompt, verbose=False)["input_ids"]
    if len(tokens) >= places:
        raise UserError(
            f"--prompt has {len(tokens)} tokens; at most {places - 1} leave room for more"
        )
    values = {
        **trained.global_values,
        **{name: value[user] for name, value in trained.local_values.items()},
    }

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

    random = np.random.default_rng(seed)
    texts = np.tile(np.array(tokens, np.int32).reshape(1, -1), [num_texts, 1])
    end = base.config.eos_token_id
    while texts.shape[1] < places and not (texts == end).any(1).all():
        logits = next_logits(tf.constant(texts)).numpy() / temperature
        logits[logits < np.partition(logits, -top_k)[:, [-top_k]]] = -np.inf
        drawn = (logits + random.gumbel(size=logits.shape)).argmax(1)
        texts = np.concatenate([texts, drawn.astype(np.int32)[:, np.newaxis]], axis=1)
    return [
        base.tokenizer.decode(text[: int(np.argmax(text == end)) if (text == end).any() else None])
        for text in texts
    ]
