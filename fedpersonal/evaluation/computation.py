"""The TFF computation that evaluates clients, and how clients are packed for it."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.batches import batch_metric_sums, predict_batch, take_batch
from fedpersonal.client.copies import touched_copies
from fedpersonal.client.pooled import predict_in_turn
from fedpersonal.client.steps import run_phase
from fedpersonal.client.values import (
    ClientValues,
    Examples,
    starting_copies,
    starting_local_values,
    starting_values,
)
from fedpersonal.data.clients import ClientDataset
from fedpersonal.federated.cohort import as_kept, local_type
from fedpersonal.federated.inlining import keras_computation
from fedpersonal.federated.packing import as_examples, pack_parts, packed_type
from fedpersonal.methods.algorithm import Phase
from fedpersonal.model.partition import PartitionedModel


def pack_evaluation(
    model: PartitionedModel,
    support: ClientDataset,
    query: ClientDataset,
    *,
    clients: int,
    batch_size: int,
    query_batch_size: int | None = None,
    touched_data: str = "none",
) -> list[collections.OrderedDict]:
    """Packs two data sets of the same clients into shards for an evaluation.

    `query_batch_size` is None for one batch that holds the whole query set, which stacked packing
    needs; `touched_data` is `all` where clients have rows of global lookup tables for themselves,
    else `none`.
    """
    width = query_batch_size or max(1, int(query.counts.max(initial=1)))
    order = np.argsort(-support.counts, kind="stable")
    shards = []
    for chunk in (order[i : i + clients] for i in range(0, len(order), clients)):
        packed = pack_parts(
            model,
            (support, query),
            chunk,
            clients_per_shard=clients,
            batch_sizes=(batch_size, width),
            touched_data=touched_data,
        )
        ids = np.pad(chunk, (0, clients - len(chunk)), constant_values=-1).astype(np.int32)
        shards.append(collections.OrderedDict(ids=ids, support=packed[0], query=packed[1]))
    return shards


# Validation and test share what is traced, and so do tests on more and more examples: tracing takes
# longer than running.
@functools.lru_cache(maxsize=4)
def evaluation_computation(
    model: PartitionedModel,
    phases: tuple[Phase, ...],
    *,
    clients: int,
    batch_size: int,
    query_batch_size: int,
    packing: str = "stacked",
    with_kept: bool = False,
    with_predictions: bool = False,
    seed: int = 0,
) -> tff.Computation:
    """Builds the TFF computation of global variables, at SERVER, and packed shards, at CLIENTS.

    It predicts once, after the phases. Arguments are of `build_evaluation` and, as packed, of
    `pack_evaluation`.
    """
    # The support set is used as a whole.
    phases = tuple(dataclasses.replace(phase, data="all") for phase in phases)
    weights_type = tff.to_type(
        collections.OrderedDict(
            (v.name, (v.dtype.as_numpy_dtype, list(v.shape))) for v in model.global_variables
        )
    )
    fields = collections.OrderedDict(
        ids=(np.int32, [clients]),
        support=packed_type(model, clients_per_shard=clients, batch_size=batch_size),
        query=packed_type(model, clients_per_shard=clients, batch_size=query_batch_size),
    )
    if with_kept:
        fields["local"] = local_type(model, clients_per_shard=clients)
    shard_type = tff.to_type(fields)
    predict: Callable[..., Any] = _predict_stacked
    if packing == "pooled":
        predict = functools.partial(predict_in_turn, with_predictions=with_predictions)

    @keras_computation(weights_type, shard_type)
    def evaluate_shard(weights, shard):
        support, query = (as_examples(model, shard[part]) for part in ("support", "query"))
        local_seed, shared, local = tf.constant([seed, -1]), dict(weights), None
        if with_kept:
            kept = as_kept(shard["local"])
            local = starting_local_values(model, support, local_seed, kept)
            local.update(starting_copies(model, shared, support, kept))
        values = starting_values(model, shared, support, local_seed, local)
        values, (support, query) = touched_copies(model, phases, values, support, query)
        sums, predictions = predict(model, phases, values, support, query)
        output = collections.OrderedDict(
            ids=shard["ids"],
            num_examples=tf.reduce_sum(query.mask, [1, 2]),
            sums=collections.OrderedDict(sorted(sums.items())),
        )
        if predictions is not None:
            if packing == "pooled":  # These are (C, N, B).
                predictions = tf.reshape(predictions, [tf.shape(predictions)[0], -1])
            output["predictions"] = predictions
        return output

    @tff.federated_computation(
        tff.FederatedType(weights_type, tff.SERVER), tff.FederatedType(shard_type, tff.CLIENTS)
    )
    def evaluate(weights, shards):
        return tff.federated_map(evaluate_shard, (tff.federated_broadcast(weights), shards))

    return evaluate


def _predict_stacked(
    model: PartitionedModel,
    phases: Sequence[Phase],
    values: ClientValues,
    support: Examples,
    query: Examples,
) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
    """Does the work of `predict_in_turn`, clients stacked; predictions are (C, B, ...)."""
    for phase in phases:
        values = run_phase(model, phase, values, support)
    batch = take_batch(model, query, tf.zeros([tf.shape(query.mask)[0]], tf.int32), values)
    outcome = predict_batch(model.personal, values, batch, training=False)
    return batch_metric_sums(model, batch, outcome), outcome.predictions
