"""What a client has written elsewhere, beside each of its utterances."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from fedpersonal.data.client_dataset import ClientDataset
from fedpersonal.draws import Purpose, generator

NO_TOKEN = -1


def add_own_history(
    dataset: ClientDataset, *, length: int, num_samples: Sequence[int], seed: int
) -> ClientDataset:
    """Gives each utterance others of the same client, drawn at random, as feature "history".

    Args:
        dataset: Utterances, their labels as of `models.utterance_prediction`.
        length: Tokens of a history, >= 1; a longer one is cut.
        num_samples: Of how many utterances a history may be: each number is as likely.
        seed: Seed of the draws.

    Returns:
        The same with "history", int32 (n, length), `NO_TOKEN` where it ends before.
    """
    rng = generator(Purpose.HISTORY, seed)
    history = np.full([dataset.num_examples, length], NO_TOKEN, np.int32)
    wanted = rng.choice(np.asarray(num_samples), dataset.num_examples)
    for client in range(dataset.num_clients):
        rows = np.arange(dataset.offsets[client], dataset.offsets[client + 1])
        if len(rows) < 2:
            continue
        for row in rows:
            drawn = rng.integers(0, len(rows) - 1, wanted[row])
            others = rows[drawn + (rows[drawn] >= row)]
            history[row] = _join(dataset.labels, others, length)
    return _with_history(dataset, history)


def add_history_of(dataset: ClientDataset, support: ClientDataset, *, length: int) -> ClientDataset:
    """Gives each utterance what the same client has written in its support set.

    The rest is as of `add_own_history`.
    """
    rows = [np.arange(*support.offsets[i : i + 2]) for i in range(support.num_clients)]
    of_clients = np.stack([_join(support.labels, own, length) for own in rows])
    return _with_history(dataset, of_clients[dataset.example_clients])


def _join(labels: np.ndarray, rows: np.ndarray, length: int) -> np.ndarray:
    """Joins the tokens of utterances, int32 (length,)."""
    joined = np.full(length, NO_TOKEN, np.int32)
    # More utterances than places cannot matter: each has a token.
    tokens = labels[rows[:length]]
    tokens = tokens[tokens >= 0][:length]
    joined[: len(tokens)] = tokens
    return joined


def _with_history(dataset: ClientDataset, history: np.ndarray) -> ClientDataset:
    return dataclasses.replace(dataset, features={**dataset.features, "history": history})
