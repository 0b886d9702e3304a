"""Training in which clients keep their local variables from round to round (FURL, section 3.5).

A client brings what it has kept to CLIENTS and takes what it keeps now from CLIENTS: of what is
private, nothing is ever broadcast or aggregated.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm
from fedpersonal.client.stacked import train_clients
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.keras import as_tff_optimizer
from fedpersonal.process.aggregation import weighted_aggregation
from fedpersonal.process.local_values import as_kept, private_type
from fedpersonal.process.round_sums import client_updates, sum_client_metrics, train_and_sum
from fedpersonal.process.server import (
    State,
    build_initial_state,
    build_server_update,
    finalized_metrics,
    initial_weights,
)
from fedpersonal.process.shards import as_examples, dataset_type, examples_from_dataset, packed_type
from fedpersonal.process.tracing import keras_computation
from fedpersonal.process.training import check_fit, check_packing


class PrivateOutput(NamedTuple):
    """What a round returns.

    Attributes:
        state: The server's next state.
        metrics: The cohort's training metrics.
        private: At CLIENTS, for each member, of `private_type`: what its clients keep now. Members
            may come back in another order.
    """

    state: Any
    metrics: Any
    private: Any


def build_private_packed_process(
    model: PartitionedModel,
    algorithm: Algorithm,
    *,
    server_optimizer: Any,
    clients: int,
    batch_size: int,
    packing: str = "stacked",
    seed: int = 0,
) -> tff.templates.IterativeProcess:
    """Builds the process whose CLIENTS members each stack many clients with kept variables.

    Args:
        model: The partitioned model.
        algorithm: What a client does; it keeps its local variables.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        clients: Clients a member.
        batch_size: Examples a batch.
        packing: `stacked` or `pooled`, as for `build_packed_process`.
        seed: Seed of the global variables' initial values and of new clients' local ones.

    Returns:
        A process; `next(state, members)` takes members `OrderedDict(examples, private)` of
        `packed_type` and `private_type`, and returns a `PrivateOutput`.

    Raises:
        ValueError: If the model and the algorithm do not fit each other.
    """
    _check_kept(algorithm)
    check_packing(model, algorithm, packing)
    initial_state = build_initial_state(model, server_optimizer, seed=seed)
    state_type = initial_state.type_signature.result
    member_type = tff.to_type(
        collections.OrderedDict(
            examples=packed_type(model, clients=clients, batch_size=batch_size),
            private=private_type(model, clients=clients),
        )
    )

    @keras_computation(state_type.global_model_weights, np.int32, member_type)
    def member_work(weights, round_number, member):
        sums, local_values = train_and_sum(
            model,
            algorithm.at_round(round_number),
            dict(weights.trainable),
            as_examples(model, member["examples"]),
            tf.stack([seed, round_number]),
            packing=packing,
            kept=as_kept(member["private"]),
        )
        return collections.OrderedDict(
            sums=sums, private=_kept_now(model, member["private"], local_values)
        )

    server_update = build_server_update(
        model, server_optimizer, state_type, member_work.type_signature.result["sums"]
    )

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    @tff.federated_computation(
        tff.FederatedType(state_type, tff.SERVER), tff.FederatedType(member_type, tff.CLIENTS)
    )
    def next_fn(state, members):
        sent = (
            tff.federated_broadcast(state.global_model_weights),
            tff.federated_broadcast(state.client_work),
            members,
        )
        results = tff.federated_map(member_work, sent)
        new_state, metrics = tff.federated_map(
            server_update, (state, tff.federated_sum(results["sums"]))
        )
        return PrivateOutput(new_state, metrics, results["private"])

    return tff.templates.IterativeProcess(initialize, next_fn)


def build_private_per_client_process(
    model: PartitionedModel,
    algorithm: Algorithm,
    *,
    server_optimizer: Any,
    aggregator: Any = None,
    seed: int = 0,
) -> tff.templates.IterativeProcess:
    """Builds the process in which each CLIENTS member is one client with kept variables.

    Args:
        model: The partitioned model.
        algorithm: What a client does; it keeps its local variables.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        aggregator: A factory of `tff.aggregators`, weighted or not; None for the weighted mean.
        seed: As for `build_private_packed_process`.

    Returns:
        A process; `next(state, members)` takes for each client `OrderedDict(examples, private)`, a
        `tf.data.Dataset` of batches and a value of `private_type` for one client, and returns a
        `PrivateOutput`.

    Raises:
        ValueError: If the model and the algorithm do not fit each other, or an unweighted
            aggregator meets an algorithm that weights clients by their examples.
    """
    _check_kept(algorithm)
    check_fit(model, algorithm)
    first_weights = tff.tensorflow.computation(lambda: initial_weights(model, seed))
    weights_type = first_weights.type_signature.result
    aggregation = weighted_aggregation(model, algorithm, aggregator).create(
        weights_type.trainable, tff.TensorType(np.float32)
    )
    finalizer = tff.learning.templates.build_apply_optimizer_finalizer(
        as_tff_optimizer(server_optimizer), weights_type
    )
    member_type = tff.to_type(
        collections.OrderedDict(
            examples=dataset_type(model), private=private_type(model, clients=1)
        )
    )

    @keras_computation(weights_type, np.int32, member_type)
    def client_work(weights, round_number, member):
        examples = examples_from_dataset(model, member["examples"])
        start = dict(weights.trainable)
        round_seed = tf.stack([seed, round_number])
        kept = as_kept(member["private"])
        own = algorithm.at_round(round_number)
        output = train_clients(model, own, start, examples, round_seed, kept)
        return collections.OrderedDict(
            update=client_updates(model, start, examples.rows, output),
            weight=output.weights[0],
            metrics=sum_client_metrics(output),
            private=_kept_now(model, member["private"], output.local_values),
        )

    @tff.tensorflow.computation(client_work.type_signature.result["metrics"])
    def cohort_metrics(sums):
        return finalized_metrics(model, sums)

    add_one = tff.tensorflow.computation(lambda n: n + 1, np.int32)

    @tff.federated_computation
    def initialize():
        return tff.federated_zip(
            State(
                tff.federated_eval(first_weights, tff.SERVER),
                (),
                tff.federated_value(0, tff.SERVER),
                aggregation.initialize(),
                finalizer.initialize(),
            )
        )

    @tff.federated_computation(
        initialize.type_signature.result, tff.FederatedType(member_type, tff.CLIENTS)
    )
    def next_fn(state, members):
        weights, round_number = state.global_model_weights, state.client_work
        sent = (tff.federated_broadcast(weights), tff.federated_broadcast(round_number), members)
        results = tff.federated_map(client_work, sent)
        aggregated = aggregation.next(state.aggregator, results["update"], results["weight"])
        finalized = finalizer.next(state.finalizer, weights, aggregated.result)
        new_state = tff.federated_zip(
            State(
                finalized.result,
                (),
                tff.federated_map(add_one, round_number),
                aggregated.state,
                finalized.state,
            )
        )
        metrics = tff.federated_map(cohort_metrics, tff.federated_sum(results["metrics"]))
        return PrivateOutput(new_state, metrics, results["private"])

    return tff.templates.IterativeProcess(initialize, next_fn)


def _check_kept(algorithm: Algorithm) -> None:
    if not algorithm.keeps:
        raise ValueError(
            f"{algorithm.name} keeps no local variables: build its process by "
            "fedpersonal.process.training."
        )


def _kept_now(
    model: PartitionedModel, private: Mapping[str, Any], local_values: Mapping[str, tf.Tensor]
) -> collections.OrderedDict:
    """Returns a value of `private_type` with what the clients of a member keep from now on."""
    values = collections.OrderedDict(
        (v.name, tf.ensure_shape(local_values[v.name], private["values"][v.name].shape))
        for v in model.local_variables
    )
    known = tf.ones_like(private["known"])
    return collections.OrderedDict(places=private["places"], known=known, values=values)
