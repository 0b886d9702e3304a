"""What aggregation sums: clients' weighted updates and their metrics."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import tensorflow as tf

from fedpersonal.algorithm import Algorithm
from fedpersonal.client.one_step import count_steps, may_step_together, step_together
from fedpersonal.client.pooled import train_in_turn
from fedpersonal.client.stacked import ClientOutput, train_clients
from fedpersonal.client.values import Examples, align
from fedpersonal.model.partition import PartitionedModel, Values


class Summary(NamedTuple):
    """How a shard makes of its clients what it sends.

    Attributes:
        of: Maps clients' examples and their output to what is sent of them.
        merge: Makes one of what is sent of two groups of clients; None where it is their sum.
        empty: Maps zeros to what is sent of no clients; None where it is the zeros.
        is_weighted_sum: Whether it is `sum_clients`, which may come of one gradient.
    """

    of: Callable[[Examples, ClientOutput], collections.OrderedDict]
    merge: Callable[[Any, Any], Any] | None = None
    empty: Callable[[Any], Any] | None = None
    is_weighted_sum: bool = False


def weighted_sum(model: PartitionedModel, start: Values) -> Summary:
    """Returns the usual summary, `sum_clients`; `start` are the global variables."""
    return Summary(
        lambda examples, output: sum_clients(model, start, examples.rows, output),
        is_weighted_sum=True,
    )


def train_and_sum(
    model: PartitionedModel,
    algorithm: Algorithm,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
    *,
    summary: Summary,
    packing: str,
    local: Values | None = None,
) -> tuple[collections.OrderedDict, Values]:
    """Trains many clients, as `train_clients` does, and sums what of them is aggregated.

    Clients without examples come last; `packing` is `stacked` or `pooled`.

    Returns:
        The sums; and, where they are kept, local variable's name to (C, ...) after the round.
    """

    def in_turn() -> tuple[collections.OrderedDict, Values]:
        return train_in_turn(
            model,
            algorithm,
            global_values,
            examples,
            seed,
            summary.of,
            local,
            merge=summary.merge,
            empty=summary.empty,
        )

    def together() -> tuple[collections.OrderedDict, Values]:
        return step_together(model, algorithm, global_values, examples, seed, local)

    may_add_up = summary.is_weighted_sum and may_step_together(model, algorithm)
    if packing == "pooled" and may_add_up:
        return _first_if_finite(count_steps(algorithm, examples) == 1, together, in_turn)
    if packing == "pooled":
        return in_turn()
    output = train_clients(model, algorithm, global_values, examples, seed, local)
    return summary.of(examples, output), output.local_values if algorithm.keeps else {}


def _first_if_finite(condition: tf.Tensor, first: Callable[[], Any], second: Callable[[], Any]):
    """Returns the first's result where a condition holds and it is finite, else the second's."""
    spec = tf.function(first, autograph=False).get_concrete_function().structured_outputs
    zeros = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), spec)
    attempt = tf.cond(condition, first, lambda: zeros)
    is_finite = [tf.reduce_all(tf.math.is_finite(part)) for part in tf.nest.flatten(attempt)]
    good = tf.reduce_all([condition, *is_finite])
    return tf.cond(good, lambda: attempt, second)


def sum_clients(
    model: PartitionedModel, start: Values, rows: Mapping[str, tf.Tensor], output: ClientOutput
) -> collections.OrderedDict:
    """Sums over a shard's clients: weighted updates as whole variables, weights and metrics.

    `rows` are those of lookup tables that each client touches, int32 (C, R).
    """
    updates = collections.OrderedDict()
    for variable in model.global_variables:
        name, update = variable.name, output.updates[variable.name]
        weights = tf.ones_like(output.weights) if name in model.owned else output.weights
        # TFF's convention: an update points from the client's final value to the initial one.
        weighted = -update * align(weights, update.shape.rank)
        if name in model.global_tables:
            flat = tf.reshape(weighted, tf.concat([[-1], variable.shape[1:]], 0))
            updates[name] = _scatter_rows(tf.reshape(rows[name], [-1]), flat, start[name])
        else:
            updates[name] = tf.reduce_sum(weighted, axis=0)
    return collections.OrderedDict(
        updates=updates, weight=tf.reduce_sum(output.weights), metrics=sum_metrics(output)
    )


def client_update(
    model: PartitionedModel,
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
    client: tf.Tensor | int,
) -> collections.OrderedDict:
    """Returns what one of a shard's clients sends, as whole variables, in their order."""
    update = collections.OrderedDict()
    for name in (v.name for v in model.global_variables):
        # As in `sum_clients`.
        update[name] = -output.updates[name][client]
        if name in model.global_tables:
            update[name] = _scatter_rows(rows[name][client], update[name], start[name])
    return update


def sum_metrics(output: ClientOutput) -> collections.OrderedDict:
    """Sums metrics and counts over clients."""
    sums = {k: tf.reduce_sum(v, 0) for k, v in output.metric_sums.items()}
    sums["num_examples"] = tf.reduce_sum(output.num_examples)
    sums["num_dropped_updates"] = tf.reduce_sum(output.dropped)
    return collections.OrderedDict(sorted(sums.items()))


def _scatter_rows(rows: tf.Tensor, values: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Sums rows into zeros shaped like a table."""
    return tf.ensure_shape(tf.math.unsorted_segment_sum(values, rows, table.shape[0]), table.shape)
