"""Which of the server's models each client takes, or how much it weighs each of them."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from fedpersonal.client.batches import predict_batch, schedule_phase, take_batch
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    count_client_batches,
    count_clients,
    phase_mask,
    tile_clients,
    where_client,
)
from fedpersonal.data.splits import count_batches
from fedpersonal.methods.phases import ChoicePhase
from fedpersonal.model.names import CLUSTER, CLUSTER_SHARES
from fedpersonal.model.partition import PartitionedModel


def choose(
    model: PartitionedModel, phase: ChoicePhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Has each client choose the cluster of the least loss on its data, or weigh all of them."""
    if phase.mixes:
        return _weigh(model, phase, values, examples)
    schedule, clients = schedule_phase(phase, examples), count_clients(examples)

    def add(number: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        step, cluster = number // phase.clusters, number % phase.clusters
        one = tile_clients(tf.one_hot(cluster, phase.clusters), clients)
        batch = take_batch(model, examples, schedule.batches[step], values)
        tried = values._replace(own={**values.own, CLUSTER: one})
        outcome = predict_batch(model, tried, batch, training=False)
        is_real = batch.mask * schedule.active[step][:, tf.newaxis] > 0
        of_batch = tf.reduce_sum(tf.where(is_real, outcome.losses, 0.0), 1, keepdims=True)
        return number + 1, losses + tf.where(one > 0, of_batch, 0.0)

    _, losses = tf.while_loop(
        lambda number, _: number < schedule.num_steps * phase.clusters,
        add,
        (0, tf.zeros_like(values.own[CLUSTER])),
        parallel_iterations=1,
    )
    return choose_least(phase, values, examples, losses)


def choose_least(
    phase: ChoicePhase, values: ClientValues, examples: Examples, losses: tf.Tensor
) -> ClientValues:
    """Has each client choose the cluster of the least loss, (C, clusters), the first of equals."""
    losses = tf.where(tf.math.is_nan(losses), np.inf, losses)
    chosen = tf.one_hot(tf.argmin(losses, 1), phase.clusters)
    # A client without examples stays where it is.
    has_examples = tf.reduce_any(phase_mask(phase.data, examples) > 0, [1, 2])
    chosen = where_client(has_examples, chosen, values.own[CLUSTER])
    told = {CLUSTER_SHARES: chosen} if phase.mean_over == "cluster" else {}
    return values._replace(own={**values.own, **told, CLUSTER: chosen})


def _weigh(
    model: PartitionedModel, phase: ChoicePhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Has each client weigh the clusters by how likely each makes its labels.

    With a loss of -log(sum over k of w_k * p_k), w_k * p_k / sum is how likely it is that cluster k
    made a label, and the next w_k is the mean of that. It is w_k * (1 - the mean loss' derivative
    by w_k) where weights are divided by their sum, which is 1: the loss need not be taken apart.
    """
    schedule, weights = schedule_phase(phase, examples), values.own[CLUSTER]
    in_pass = count_batches(phase.data, count_client_batches(examples))

    def add(
        number: tf.Tensor, weights: tf.Tensor, slopes: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        batch = take_batch(model, examples, schedule.batches[number], values)
        is_real = batch.mask * schedule.active[number][:, tf.newaxis] > 0
        with tf.GradientTape() as tape:
            tape.watch(weights)
            tried = values._replace(own={**values.own, CLUSTER: weights})
            outcome = predict_batch(model, tried, batch, training=False)
            total = tf.reduce_sum(tf.where(is_real, outcome.losses, 0.0))
        slopes += tape.gradient(total, weights)
        counts += tf.reduce_sum(tf.where(is_real, outcome.weights, 0.0), 1, keepdims=True)
        ends = tf.equal((number + 1) % tf.maximum(in_pass, 1), 0)[:, tf.newaxis]
        moved = tf.maximum(weights * (1.0 - tf.math.divide_no_nan(slopes, counts)), 0.0)
        whole = tf.reduce_sum(moved, 1, keepdims=True)
        is_sane = ends & (whole > 0.0) & tf.math.is_finite(whole)
        weights = tf.where(is_sane, tf.math.divide_no_nan(moved, whole), weights)
        return number + 1, weights, tf.where(ends, 0.0, slopes), tf.where(ends, 0.0, counts)

    start = 0, weights, tf.zeros_like(weights), tf.zeros_like(weights[:, :1])
    _, weights, *_ = tf.while_loop(
        lambda number, *_: number < schedule.num_steps, add, start, parallel_iterations=1
    )
    return values._replace(own={**values.own, CLUSTER: weights})
