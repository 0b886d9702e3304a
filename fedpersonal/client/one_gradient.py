"""A round in which every client takes one step of plain SGD from the broadcast weights.

The weighted sum of such updates is one gradient, of the clients' weighted losses. Clients then need
no separate weights, and all their examples can share matrix products. FedAvg and FURL with one
local epoch and few examples per client have such rounds.
"""

from __future__ import annotations

import collections
from typing import Any

import tensorflow as tf

from fedpersonal.client.batches import schedule_phase, zero_sums
from fedpersonal.client.optimizer import optimizer_of, plain_sgd_rate
from fedpersonal.client.pooled_batches import (
    Pool,
    choose_rows,
    fetch_pool_rows,
    longest_first,
    pool_batches,
    pool_examples,
    predict_pool,
    sum_over_chunks,
    sum_weights,
)
from fedpersonal.client.steps import bound_local_values
from fedpersonal.client.values import ClientValues, Examples, align, join_axes
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import GradientPhase
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel, Values


def may_step_together(model: PartitionedModel, algorithm: Algorithm) -> bool:
    """Returns whether single steps of an algorithm's clients can be one gradient."""
    (phase, *others) = algorithm.phases
    return (
        not others
        and isinstance(phase, GradientPhase)
        and phase.variables == "all"
        and phase.ahead is None
        and not model.copies
        and all(v.constraint is None for v in model.variables)
        and algorithm.max_update_norm is None
        and all(v.name in model.tables for v in model.local_variables)
        and all(plain_sgd_rate(optimizer_of(phase, v)) is not None for v in model.variables)
        and not any(find_mixing(model, training=True))
    )


def steps_once_a_batch(model: PartitionedModel, algorithm: Algorithm) -> bool:
    """Returns whether clients of one batch each step together, without per-client table rows."""
    if not may_step_together(model, algorithm):
        return False
    phase = algorithm.last_phase
    return phase.max_steps == 1 or (phase.epochs == 1 and phase.passes is None)


def count_steps(algorithm: Algorithm, examples: Examples) -> tf.Tensor:
    """Returns the most steps that a client takes, int32."""
    return schedule_phase(algorithm.last_phase, examples).num_steps


def step_together(
    model: PartitionedModel,
    algorithm: Algorithm,
    values: ClientValues,
    examples: Examples,
) -> tuple[collections.OrderedDict, Values]:
    """Takes every client's one step from `values`; results are those of `train_and_sum`.

    `may_step_together` must be true of the algorithm, and its `count_steps` must be 1.
    """
    phase = algorithm.last_phase
    rates = {v.name: plain_sgd_rate(optimizer_of(phase, v)) for v in model.variables}
    positions = {k: v for k, v in examples.positions.items() if k in values.per_client}
    pool = pool_examples(model, examples._replace(positions=positions))
    batches, active, _, num_examples = schedule_phase(phase, examples)
    pool, rows = pool_batches(pool, examples, batches[0], active[0])
    rows = longest_first(model, pool, rows)
    totals = sum_weights(pool, rows)
    exists = examples.exists
    weights = totals if algorithm.weighting == "num_examples" else exists
    slopes, metric_sums = _slopes(model, values, pool, rows, weights, totals)
    steps = {name: rates[name] * slope for name, slope in slopes.items()}
    updates = {v.name: steps[v.name] for v in model.global_variables}
    start = {v.name: values.per_client[v.name] for v in model.local_variables}
    moved = {name: value - steps[name] for name, value in start.items()}
    moved = bound_local_values(algorithm, start, moved)
    metrics = {k: tf.reduce_sum(v, 0) for k, v in metric_sums.items()}
    metrics["num_examples"] = tf.reduce_sum(num_examples)
    metrics["num_dropped_updates"] = tf.zeros([])
    sums = collections.OrderedDict(
        updates=collections.OrderedDict(updates),
        weight=tf.reduce_sum(weights),
        metrics=collections.OrderedDict(sorted(metrics.items())),
    )
    return sums, moved if algorithm.keeps else {}


def _slopes(
    model: PartitionedModel,
    values: ClientValues,
    pool: Pool,
    rows: tf.Tensor,
    weights: tf.Tensor,
    totals: tf.Tensor,
) -> tuple[Values, dict[str, tf.Tensor]]:
    """Differentiates the clients' mean losses, chunk by chunk, and sums metrics.

    Gradients are summed over clients and weighted, except those of local tables and of tables with
    a row per client.
    """
    dense = {k: v for k, v in values.shared.items() if k not in model.tables}
    tables = {
        name: join_axes(values.per_client[name], 2)
        if name in values.per_client
        else values.shared[name]
        for name in model.tables
    }

    def chunk_slopes(chunk: tf.Tensor) -> tuple[Values, Values, Values, dict[str, tf.Tensor]]:
        chosen = choose_rows(model, pool, chunk)
        fetched, places = fetch_pool_rows(model, values, chosen)
        with tf.GradientTape() as tape:
            tape.watch((dense, fetched))
            output = predict_pool(
                model,
                dense,
                fetched,
                chosen,
                training=True,
                with_metrics=True,
                noise=values.fold_noise(0).noise,
            )
            shares = tf.math.divide_no_nan(
                tf.gather(weights, chosen.clients), tf.gather(totals, chosen.clients)
            )
            total = tf.reduce_sum(output.losses * shares)
        dense_slopes, row_slopes = tape.gradient(
            total, (dense, fetched), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        slopes, at = {}, {}
        for name, slope in row_slopes.items():
            feature = chosen.features[model.tables[name]]
            at[name] = places.get(name, tf.reshape(feature, [-1]))
            if name in places or name in model.server_rows_per_client:
                slope = _unweighted(slope, feature, chosen.clients, weights)
            slopes[name] = slope
        return dense_slopes, slopes, at, output.sums

    def add(total: Any, part: Any) -> Any:
        (dense, tables, sums), (dense_slopes, slopes, at, chunk_sums) = total, part
        # A table may have far more rows than a chunk looks up, so only the latter are written.
        tables = {k: tf.raw_ops.InplaceAdd(x=v, i=at[k], v=slopes[k]) for k, v in tables.items()}
        dense, sums = tf.nest.map_structure(tf.add, (dense, sums), (dense_slopes, chunk_sums))
        return dense, tables, sums

    # In-place sums need a buffer that only the loop uses; it must not be a constant.
    zeros = {
        k: tf.raw_ops.Empty(shape=tf.shape(v), dtype=v.dtype, init=True) for k, v in tables.items()
    }
    none = {k: tf.zeros_like(v) for k, v in dense.items()}
    dense_slopes, table_slopes, sums = sum_over_chunks(
        model, pool, rows, chunk_slopes, (none, zeros, zero_sums(model, pool.num_clients)), add
    )
    for name in table_slopes.keys() & values.per_client.keys():
        table_slopes[name] = tf.reshape(table_slopes[name], tf.shape(values.per_client[name]))
    return {**dense_slopes, **table_slopes}, sums


def _unweighted(
    slope: tf.Tensor, feature: tf.Tensor, clients: tf.Tensor, weights: tf.Tensor
) -> tf.Tensor:
    """Divides the slopes of fetched rows, one for each id, by their clients' weights."""
    row_clients = tf.broadcast_to(align(clients, feature.shape.rank), tf.shape(feature))
    scale = tf.math.reciprocal_no_nan(tf.gather(weights, tf.reshape(row_clients, [-1])))
    return slope * align(scale, slope.shape.rank)
