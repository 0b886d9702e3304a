"""FedRecon's round by hand in JAX: `jit(vmap(scan))`, on the rows that clients touch alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.rivals.clients import USER_START, PaddedCohort, Steps


class JaxRounds:
    """A side of `side_by_side` that starts from given item vectors."""

    def __init__(self, cohort: Callable[[int], PaddedCohort], items: np.ndarray, steps: Steps):
        """Takes what gives a round's clients, the items' vectors (items, K) and the steps."""
        self.prepare = cohort
        self._items = jnp.asarray(items)
        self._next = jax.jit(lambda items, cohort: _round(items, cohort, steps))

    def run(self, prepared: PaddedCohort) -> None:
        """Runs a round and waits for its end."""
        self._items = self._next(self._items, prepared).block_until_ready()

    def weights(self) -> Sequence[np.ndarray]:
        """Returns the items' vectors."""
        return [np.asarray(self._items)]


def _round(items: Any, cohort: PaddedCohort, steps: Steps) -> Any:
    """Returns the items' vectors after a round; the server adds the weighted mean change."""
    tables = items[cohort.rows]

    train = functools.partial(_client, steps=steps)
    changes, weights = jax.vmap(train)(tables, *cohort[1:])
    weighted = (changes * weights[:, None, None]).reshape(-1, items.shape[1])
    total = jnp.zeros_like(items).at[cohort.rows.reshape(-1)].add(weighted)
    return items + total / weights.sum()


def _client(
    table: Any, places: Any, ratings: Any, mask: Any, num_batches: Any, steps: Steps
) -> tuple[Any, Any]:
    """Returns the change of a client's rows (R, K), and its examples in the update."""
    num_support, num_query = (num_batches + 1) // 2, num_batches // 2
    most_support, most_query = (len(places) + 1) // 2, len(places) // 2

    def loss(user: Any, rows: Any, batch: Any) -> Any:
        errors = rows @ user - ratings[batch]
        return (mask[batch] * errors**2).sum() / jnp.maximum(mask[batch].sum(), 1)

    def rebuild(user: Any, step: Any) -> tuple[Any, None]:
        batch = 2 * (step % jnp.maximum(num_support, 1))
        active = step < steps.epochs * num_support
        slope = jax.grad(loss)(user, table[places[batch]], batch)
        return user - steps.rebuilding_rate * active * slope, None

    def update(table: Any, step: Any) -> tuple[Any, Any]:
        batch = 2 * step + 1
        active = step < num_query
        slope = jax.grad(loss, 1)(user, table[places[batch]], batch)
        moved = table.at[places[batch]].add(-steps.client_rate * active * slope)
        return moved, active * mask[batch].sum()

    user = jnp.full([table.shape[1]], USER_START)
    rebuilding = min(steps.max_rebuilding, steps.epochs * most_support)
    user, _ = jax.lax.scan(rebuild, user, jnp.arange(rebuilding))
    updates = min(steps.max_updates, most_query)
    after, examples = jax.lax.scan(update, table, jnp.arange(updates))
    return after - table, examples.sum()
