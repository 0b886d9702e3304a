"""FedRecon's round as a plain NumPy loop over clients and steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.rivals.clients import USER_START, Steps

# A client's batches, each of items (B,) and ratings (B,).
Batches = list[tuple[np.ndarray, np.ndarray]]


class NumpyRounds:
    """A side of `side_by_side` that starts from given item vectors."""

    def __init__(self, cohort: Callable[[int], list[Batches]], items: np.ndarray, steps: Steps):
        """Takes what gives a round's clients, the items' vectors (items, K) and the steps."""
        self.prepare = cohort
        self._items, self._steps = items.copy(), steps

    def run(self, prepared: list[Batches]) -> None:
        """Runs a round."""
        total, weight = np.zeros_like(self._items), 0
        for batches in prepared:
            rows, change, examples = _client(self._items, batches, self._steps)
            total[rows] += change * np.float32(examples)
            weight += examples
        self._items += total / np.float32(weight)

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        return [self._items]


def _client(
    items: np.ndarray, batches: Batches, steps: Steps
) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the rows that a client changes, their change, and its examples in the update."""
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
