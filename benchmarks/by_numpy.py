"""FedRecon's client in NumPy alone: plain matrix factorization, SGD, support and query in turn."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

# The initial value of a user's vector, equal for all implementations.
USER_START = 0.1
# A client's batches, each of items (B,) and ratings (B,).
Batches = list[tuple[np.ndarray, np.ndarray]]


class Steps(NamedTuple):
    """Local steps of a client.

    Attributes:
        batch_size: Examples of a batch.
        rebuilding_rate: Learning rate of the user's vector.
        client_rate: Learning rate of the items' vectors.
        epochs: Passes over the support batches.
        max_rebuilding: Maximum number of steps of all passes.
        max_updates: Maximum number of steps over the query batches.
    """

    batch_size: int
    rebuilding_rate: float
    client_rate: float
    epochs: int
    max_rebuilding: int
    max_updates: int


def cut_batches(rated: np.ndarray, ratings: np.ndarray, *, batch_size: int) -> Batches:
    """Returns a client's batches, of its support and its query set in turn."""
    starts = range(0, len(ratings), batch_size)
    return [(rated[at : at + batch_size], ratings[at : at + batch_size]) for at in starts]


def train_client(
    items: np.ndarray, batches: Batches, steps: Steps
) -> tuple[np.ndarray, np.ndarray, int]:
    """Trains a client.

    Returns:
        The rows that it changes, their changes, and the number of its query examples.
    """
    support, query = batches[::2], batches[1::2][: steps.max_updates]
    user = np.full(items.shape[1], USER_START, np.float32)
    looked_up = [(items[rated], ratings) for rated, ratings in support]
    for step in range(min(steps.epochs * len(support), steps.max_rebuilding)):
        vectors, ratings = looked_up[step % len(support)]
        slope = 2 * (vectors @ user - ratings) @ vectors
        user -= np.float32(steps.rebuilding_rate / len(ratings)) * slope
    rows = np.unique(np.concatenate([rated for rated, _ in query] or [np.zeros(0, np.int32)]))
    table = items[rows]
    for rated, ratings in query:
        places = np.searchsorted(rows, rated)
        errors = 2 * (table[places] @ user - ratings)
        rate = np.float32(steps.client_rate / len(ratings))
        np.subtract.at(table, places, rate * np.outer(errors, user))
    return rows, table - items[rows], sum(len(ratings) for _, ratings in query)
