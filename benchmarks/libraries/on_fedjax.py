"""FedRecon's round on FedJAX: `for_each_client` with its JIT backend, to rebuild and to update.

A single pass with `jax.lax.cond` in its steps is as fast; gradients of whole tables are slower.
"""

from __future__ import annotations

import sys
from typing import Any

import fedjax
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.by_numpy import USER_START, Batches, Steps
from benchmarks.libraries.job import Job


def loss(rows: Any, user: Any, batch: Any) -> Any:
    """Returns the mean squared error of a batch."""
    return jnp.mean((rows @ user - batch["rating"]) ** 2)


def build_rebuilding(rate: float) -> Any:
    """Returns the pass in which clients rebuild their vectors."""

    def init(items, _):
        return {"items": items, "user": jnp.full(items.shape[1], USER_START, items.dtype)}

    def step(state, batch):
        rows, user = state["items"][batch["item"]], state["user"]
        return {**state, "user": user - rate * jax.grad(loss, 1)(rows, user, batch)}

    return fedjax.for_each_client(init, step, lambda items, state: state["user"])


def build_update(rate: float) -> Any:
    """Returns the pass in which clients change the items' vectors."""

    def init(items, user):
        return {"items": items, "user": user}

    def step(state, batch):
        items, places = state["items"], batch["item"]
        slope = jax.grad(loss)(items[places], state["user"], batch)
        return {**state, "items": items.at[places].add(-rate * slope)}

    return fedjax.for_each_client(init, step, lambda items, state: state["items"] - items)


def as_dicts(batches: Batches) -> list[dict[str, np.ndarray]]:
    """Converts batches to FedJAX's form."""
    return [{"item": rated, "rating": ratings} for rated, ratings in batches]


def main() -> None:
    """Runs the rounds."""
    job = Job(sys.argv[1])
    steps: Steps = job.steps
    support, query = {}, {}
    for index, batches in job.clients().items():
        support[index] = as_dicts((batches[::2] * steps.epochs)[: steps.max_rebuilding])
        query[index] = as_dicts(batches[1::2][: steps.max_updates])
    examples = {i: sum(len(one["rating"]) for one in batches) for i, batches in query.items()}
    rebuild, update = build_rebuilding(steps.rebuilding_rate), build_update(steps.client_rate)
    items = jnp.asarray(job.items)
    for cohort in job.rounds():
        users = dict(rebuild(items, [(index, support[index], ()) for index in cohort]))
        clients = [(index, query[index], users[index]) for index in cohort]
        weighted = ((change, examples[index]) for index, change in update(items, clients))
        mean = fedjax.tree_util.tree_mean(weighted)
        items = fedjax.tree_util.tree_add(items, mean).block_until_ready()
    job.finish(np.asarray(items))


if __name__ == "__main__":
    main()
