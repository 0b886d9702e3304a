"""Training as a TFF process: broadcast, client work, aggregate, server update.

Both processes keep their state in a `tff.learning.templates.LearningAlgorithmState` whose
`global_model_weights.trainable` maps each global variable's name to its value. Local variables
appear in no type that leaves a client.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.algorithm import Algorithm, RidgePhase
from fedpersonal.client.checks import check_phases
from fedpersonal.client.pooled import PACKINGS
from fedpersonal.client.ridge import check_linear
from fedpersonal.client.stacked import train_clients
from fedpersonal.errors import check_choice
from fedpersonal.model.lookups import check_lookups
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.probing import check_rows_are_independent
from fedpersonal.optimizers.keras import as_tff_optimizer
from fedpersonal.process.aggregation import weighted_aggregation
from fedpersonal.process.round_sums import client_updates, sum_client_metrics, train_and_sum
from fedpersonal.process.server import (
    build_initial_state,
    build_server_update,
    finalized_metrics,
    initial_weights,
)
from fedpersonal.process.shards import as_examples, dataset_type, examples_from_dataset, packed_type
from fedpersonal.process.tracing import keras_computation


def build_packed_process(
    model: PartitionedModel,
    algorithm: Algorithm,
    *,
    server_optimizer: Any,
    clients: int,
    batch_size: int,
    packing: str = "stacked",
    seed: int = 0,
) -> tff.templates.IterativeProcess:
    """Builds the process whose CLIENTS members each stack many clients.

    It does the work of `build_per_client_process`, with its weighted mean, in far fewer operations.

    Args:
        model: The partitioned model.
        algorithm: What a client does.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        clients: Clients a member.
        batch_size: Examples a batch.
        packing: `stacked`: clients' weights are stacked and take their steps together, which suits
            models of many small operations. `pooled`: clients put their examples together where
            they share weights and take turns where not, which suits models bound by arithmetic.
        seed: Seed of the global variables' initial values and of local ones in each round.

    Returns:
        A process; `next(state, members)` takes the members of `process.shards.pack_cohort` and
        returns a `LearningProcessOutput` of the new state and the cohort's training metrics.

    Raises:
        ValueError: If the model and the algorithm do not fit each other.
    """
    _check_not_kept(algorithm, "build_private_packed_process")
    check_packing(model, algorithm, packing)

    initial_state = build_initial_state(model, server_optimizer, seed=seed)
    state_type = initial_state.type_signature.result
    member_type = packed_type(model, clients=clients, batch_size=batch_size)

    @keras_computation(state_type.global_model_weights, np.int32, member_type)
    def member_work(weights, round_number, member):
        sums, _ = train_and_sum(
            model,
            algorithm.at_round(round_number),
            dict(weights.trainable),
            as_examples(model, member),
            tf.stack([seed, round_number]),
            packing=packing,
        )
        return sums

    server_update = build_server_update(
        model, server_optimizer, state_type, member_work.type_signature.result
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
        sums = tff.federated_sum(tff.federated_map(member_work, sent))
        new_state, metrics = tff.federated_map(server_update, (state, sums))
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    return tff.templates.IterativeProcess(initialize, next_fn)


def build_per_client_process(
    model: PartitionedModel,
    algorithm: Algorithm,
    *,
    server_optimizer: Any,
    aggregator: Any = None,
    seed: int = 0,
) -> tff.learning.templates.LearningProcess:
    """Builds the process in which each CLIENTS member is one client.

    It stands where `tff.learning.algorithms.build_fed_recon` stood.

    Args:
        model: The partitioned model.
        algorithm: What a client does.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        aggregator: A factory of `tff.aggregators`, weighted or not; None for the weighted mean.
        seed: As for `build_packed_process`.

    Returns:
        A learning process; `next(state, datasets)` takes a list with, for each client, a
        `tf.data.Dataset` or a list of batches `OrderedDict(x=features, y=labels)`.

    Raises:
        ValueError: If the model and the algorithm do not fit each other, or an unweighted
            aggregator meets an algorithm that weights clients by their examples.
    """
    _check_not_kept(algorithm, "build_private_per_client_process")
    check_fit(model, algorithm)
    first_weights = tff.tensorflow.computation(lambda: initial_weights(model, seed))
    weights_type = first_weights.type_signature.result
    aggregation = weighted_aggregation(model, algorithm, aggregator).create(
        weights_type.trainable, tff.TensorType(np.float32)
    )
    return tff.learning.templates.compose_learning_process(
        first_weights,
        tff.learning.templates.build_broadcast_process(weights_type),
        _client_work_process(model, algorithm, weights_type, seed),
        aggregation,
        tff.learning.templates.build_apply_optimizer_finalizer(
            as_tff_optimizer(server_optimizer), weights_type
        ),
    )


def check_fit(model: PartitionedModel, algorithm: Algorithm) -> None:
    """Raises a ValueError unless the algorithm moves variables that the model has."""
    if algorithm.local_variables == "none" and model.local_variables:
        raise ValueError(
            f"{algorithm.name} has no local variables; the model's local layers own "
            f"{[v.name for v in model.local_variables]}. Give it a model without local layers."
        )
    if algorithm.local_variables != "none" and not model.local_variables:
        raise ValueError(f"{algorithm.name} needs local variables; the model has none.")
    check_phases(model, algorithm.phases)
    if any(isinstance(phase, RidgePhase) for phase in algorithm.phases):
        check_linear(model)
    check_lookups(model)


def check_packing(model: PartitionedModel, algorithm: Algorithm, packing: str) -> None:
    """Raises a ValueError unless the algorithm can be executed in this packing."""
    check_choice("packed execution", "packing", packing, PACKINGS)
    check_fit(model, algorithm)
    if packing == "pooled":
        check_rows_are_independent(model)


def _check_not_kept(algorithm: Algorithm, builder: str) -> None:
    if algorithm.keeps:
        raise ValueError(
            f"{algorithm.name} keeps local variables from round to round: build its process by "
            f"fedpersonal.process.kept_training.{builder}."
        )


def _client_work_process(
    model: PartitionedModel, algorithm: Algorithm, weights_type: Any, seed: int
) -> tff.learning.templates.ClientWorkProcess:
    data_type = dataset_type(model)

    @tff.federated_computation
    def initialize():
        return tff.federated_value(0, tff.SERVER)

    @keras_computation(weights_type, np.int32, data_type)
    def client_work(weights, round_number, dataset):
        examples = examples_from_dataset(model, dataset)
        start = dict(weights.trainable)
        own = algorithm.at_round(round_number)
        output = train_clients(model, own, start, examples, tf.stack([seed, round_number]))
        updates = client_updates(model, start, examples.rows, output)
        return (
            tff.learning.templates.ClientResult(updates, output.weights[0]),
            sum_client_metrics(output),
        )

    metric_sums_type = client_work.type_signature.result[1]

    @tff.tensorflow.computation(metric_sums_type)
    def cohort_metrics(sums):
        return collections.OrderedDict(train=finalized_metrics(model, sums))

    add_one = tff.tensorflow.computation(lambda n: n + 1, np.int32)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(round_number, weights, datasets):
        result, sums = tff.federated_map(
            client_work, (weights, tff.federated_broadcast(round_number), datasets)
        )
        return tff.templates.MeasuredProcessOutput(
            state=tff.federated_map(add_one, round_number),
            result=result,
            measurements=tff.federated_map(cohort_metrics, tff.federated_sum(sums)),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)
