"""Each client's choice between the server's models, or its weights of them."""

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


def choose_clusters(
    model: PartitionedModel, phase: ChoicePhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Has each client choose the cluster of the least loss on its data, or weight all clusters."""
    if phase.mixes:
        return _weight_clusters(model, phase, values, examples)
    schedule, clients = schedule_phase(phase, examples), count_clients(examples)

    def add(number: tf.Tensor, losses: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        step, cluster = number // phase.clusters, number % phase.clusters
        one = tile_clients(tf.one_hot(cluster, phase.clusters), clients)
        batch = take_batch(model, examples, schedule.batches[step], values)
        tried = values._replace(per_client={**values.per_client, CLUSTER: one})
        output = predict_batch(model, tried, batch, training=False)
        is_real = batch.mask * schedule.active[step][:, tf.newaxis] > 0
        batch_loss = tf.reduce_sum(tf.where(is_real, output.losses, 0.0), 1, keepdims=True)
        return number + 1, losses + tf.where(one > 0, batch_loss, 0.0)

    _, losses = tf.while_loop(
        lambda number, _: number < schedule.num_steps * phase.clusters,
        add,
        (0, tf.zeros_like(values.per_client[CLUSTER])),
        parallel_iterations=1,
    )
    return choose_least_loss(phase, values, examples, losses)


def choose_least_loss(
    phase: ChoicePhase, values: ClientValues, examples: Examples, losses: tf.Tensor
) -> ClientValues:
    """Has each client choose the cluster of the least of its `losses`, (C, clusters).

    Of equal losses, the first cluster wins.
    """
    losses = tf.where(tf.math.is_nan(losses), np.inf, losses)
    chosen = tf.one_hot(tf.argmin(losses, 1), phase.clusters)
    # A client without examples keeps its cluster.
    has_examples = tf.reduce_any(phase_mask(phase.data, examples) > 0, [1, 2])
    chosen = where_client(has_examples, chosen, values.per_client[CLUSTER])
    sent = {CLUSTER_SHARES: chosen} if phase.mean_over == "cluster" else {}
    return values._replace(per_client={**values.per_client, **sent, CLUSTER: chosen})


def _weight_clusters(
    model: PartitionedModel, phase: ChoicePhase, values: ClientValues, examples: Examples
) -> ClientValues:
    """Has each client weight the clusters by the likelihood that each gives its labels.

    With a loss of -log(sum over k of w_k * p_k), w_k * p_k / sum is the probability that cluster k
    made a label, and the next w_k is the mean of it. Since weights are divided by their sum, which
    is 1, this mean is w_k * (1 - the mean loss' derivative by w_k): no p_k is needed.
    """
    schedule, weights = schedule_phase(phase, examples), values.per_client[CLUSTER]
    in_pass = count_batches(phase.data, count_client_batches(examples))

    def add(
        number: tf.Tensor, weights: tf.Tensor, slopes: tf.Tensor, counts: tf.Tensor
    ) -> tuple[tf.Tensor, ...]:
        batch = take_batch(model, examples, schedule.batches[number], values)
        is_real = batch.mask * schedule.active[number][:, tf.newaxis] > 0
        with tf.GradientTape() as tape:
            tape.watch(weights)
            tried = values._replace(per_client={**values.per_client, CLUSTER: weights})
            output = predict_batch(model, tried, batch, training=False)
            total = tf.reduce_sum(tf.where(is_real, output.losses, 0.0))
        slopes += tape.gradient(total, weights)
        counts += tf.reduce_sum(tf.where(is_real, output.weights, 0.0), 1, keepdims=True)
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
    return values._replace(per_client={**values.per_client, CLUSTER: weights})
