"""A round in which every client takes one step of plain SGD from the weights that all were sent.

The weighted sum of such updates is one gradient, of the clients' weighted losses: clients need no
weights of their own, and all their examples can share matrix products. FedAvg and FURL with one
local epoch and few examples a client are of this kind.
"""

from __future__ import annotations

import collections

import tensorflow as tf

from fedpersonal.client.batches import schedule_phase, zero_sums
from fedpersonal.client.optimizer import optimizer_of, plain_sgd_rate
from fedpersonal.client.pooled_batches import (
    Pool,
    choose_rows,
    fetch_pool_rows,
    longest_first,
    pool_examples,
    predict_pool,
    rows_of_batches,
    sum_over_chunks,
    sum_weights,
)
from fedpersonal.client.steps import bound_local_values
from fedpersonal.client.values import ClientValues, Examples, align
from fedpersonal.methods.algorithm import Algorithm, GradientPhase
from fedpersonal.model.mixing import find_mixing
from fedpersonal.model.partition import PartitionedModel, Values


def may_step_together(model: PartitionedModel, algorithm: Algorithm) -> bool:
    """Tells whether single steps of an algorithm's clients can be one gradient."""
    (phase, *others) = algorithm.phases
    return (
        not others
        and isinstance(phase, GradientPhase)
        and phase.variables == "all"
        and phase.ahead is None
        and not model.copies
        and algorithm.max_update_norm is None
        and all(v.name in model.tables for v in model.local_variables)
        and all(plain_sgd_rate(optimizer_of(phase, v)) is not None for v in model.variables)
        and not any(find_mixing(model, training=True))
    )


def count_steps(algorithm: Algorithm, examples: Examples) -> tf.Tensor:
    """Returns the most steps that a client takes, int32."""
    return schedule_phase(algorithm.last_phase, examples).num_steps


def step_together(
    model: PartitionedModel,
    algorithm: Algorithm,
    values: ClientValues,
    examples: Examples,
) -> tuple[collections.OrderedDict, Values]:
    """Takes the one step of every client from some values; results are those of `train_and_sum`.

    The algorithm must be one of which `may_step_together` is true, and `count_steps` of it 1.
    """
    phase = algorithm.last_phase
    rates = {v.name: plain_sgd_rate(optimizer_of(phase, v)) for v in model.variables}
    pool = pool_examples(model, examples)
    batches, active, _, num_examples = schedule_phase(phase, examples)
    rows = longest_first(model, pool, rows_of_batches(examples, batches[0], active[0]))
    totals = sum_weights(pool, rows)
    exists = examples.exists
    weights = totals if algorithm.weighting == "num_examples" else exists
    slopes, metric_sums = _slopes(model, values, pool, rows, weights, totals)
    steps = {name: rates[name] * slope for name, slope in slopes.items()}
    updates = {v.name: steps[v.name] for v in model.global_variables}
    start = {v.name: values.own[v.name] for v in model.local_variables}
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
    """Differentiates the clients' mean losses, chunk by chunk; and sums metrics.

    Gradients are summed over clients, and weighted but for owned and local tables.
    """
    dense = {k: v for k, v in values.shared.items() if k not in model.tables}
    zeros = {
        v.name: tf.zeros_like(values.own[v.name] if v.is_local else values.shared[v.name])
        for v in model.variables
    }

    def chunk_slopes(chunk: tf.Tensor) -> tuple[Values, dict[str, tf.Tensor]]:
        chosen = choose_rows(model, pool, chunk)
        fetched, places = fetch_pool_rows(model, values, chosen)
        with tf.GradientTape() as tape:
            tape.watch((dense, fetched))
            outcome = predict_pool(
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
            total = tf.reduce_sum(outcome.losses * shares)
        dense_slopes, row_slopes = tape.gradient(
            total, (dense, fetched), unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        tables = {
            name: _into_table(model, name, slope, places.get(name), chosen, weights, zeros[name])
            for name, slope in row_slopes.items()
        }
        return {**dense_slopes, **tables}, outcome.sums

    return sum_over_chunks(
        model, pool, rows, chunk_slopes, (zeros, zero_sums(model, pool.num_clients))
    )


def _into_table(model, name, slope, places, chosen: Pool, weights, table) -> tf.Tensor:
    """Sums the slopes of fetched rows into zeros shaped like their table or like clients' own."""
    feature = chosen.features[model.tables[name]]
    if places is not None or name in model.owned:
        owners = tf.broadcast_to(align(chosen.clients, feature.shape.rank), tf.shape(feature))
        scale = tf.math.reciprocal_no_nan(tf.gather(weights, tf.reshape(owners, [-1])))
        slope *= align(scale, slope.shape.rank)
    at = tf.reshape(feature, [-1]) if places is None else places
    if places is None:
        return tf.math.unsorted_segment_sum(slope, at, table.shape[0])
    shape = tf.shape(table)
    return tf.reshape(tf.math.unsorted_segment_sum(slope, at, shape[0] * shape[1]), shape)
