"""Training as a TFF process: broadcast, client work, aggregate, server update.

Both processes keep their state in a `tff.learning.templates.LearningAlgorithmState` whose
`global_model_weights.trainable` maps each global variable's name to its value. Local variables
appear in no type that leaves a client.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.aggregation import OwnedTablesFactory
from fedpersonal.algorithm import Algorithm, RidgePhase, check_choice
from fedpersonal.client_work import ClientOutput, train_clients
from fedpersonal.execution import as_examples, dataset_type, examples_from_dataset, packed_type
from fedpersonal.lookups import check_lookups
from fedpersonal.partition import PartitionedModel
from fedpersonal.pooled_work import PACKINGS, train_in_turn
from fedpersonal.probing import check_rows_are_independent
from fedpersonal.ridge import check_linear
from fedpersonal.tracing import keras_computation

State = tff.learning.templates.LearningAlgorithmState


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
        A process; `next(state, members)` takes `fedpersonal.execution.pack_cohort`'s members and
        returns a `LearningProcessOutput` of the new state and the cohort's training metrics.

    Raises:
        ValueError: If the model and the algorithm do not fit each other.
    """
    check_choice("build_packed_process", "packing", packing, PACKINGS)
    check_fit(model, algorithm)
    if packing == "pooled":
        check_rows_are_independent(model)

    @tff.tensorflow.computation
    def initial_state():
        weights = _initial_weights(model, seed)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
        return State(weights, (), 0, (), server_optimizer.initialize(specs))

    state_type = initial_state.type_signature.result
    member_type = packed_type(model, clients=clients, batch_size=batch_size)

    @keras_computation(state_type.global_model_weights, np.int32, member_type)
    def member_work(weights, round_number, member):
        start, examples = dict(weights.trainable), as_examples(model, member)
        round_seed = tf.stack([seed, round_number])

        def summarize(examples, output):
            return _member_sums(model, start, examples.rows, output)

        if packing == "pooled":
            return train_in_turn(model, algorithm, start, examples, round_seed, summarize)
        return summarize(examples, train_clients(model, algorithm, start, examples, round_seed))

    # One computation for all that the server does: each one more costs a copy of the weights.
    @tff.tensorflow.computation(state_type, member_work.type_signature.result)
    def server_update(state, sums):
        weights = state.global_model_weights.trainable
        mean = collections.OrderedDict(
            (name, total if name in model.owned else tf.math.divide_no_nan(total, sums["weight"]))
            for name, total in sums["updates"].items()
        )
        optimizer_state, weights = server_optimizer.next(state.finalizer, weights, mean)
        new_weights = tff.learning.models.ModelWeights(weights, ())
        new_state = State(new_weights, (), state.client_work + 1, (), optimizer_state)
        return new_state, finalized_metrics(model, sums["metrics"])

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
    check_fit(model, algorithm)
    initial_weights = tff.tensorflow.computation(lambda: _initial_weights(model, seed))
    weights_type = initial_weights.type_signature.result
    aggregation = _weighted_aggregation(model, algorithm, aggregator).create(
        weights_type.trainable, tff.TensorType(np.float32)
    )
    return tff.learning.templates.compose_learning_process(
        initial_weights,
        tff.learning.templates.build_broadcast_process(weights_type),
        _client_work_process(model, algorithm, weights_type, seed),
        aggregation,
        tff.learning.templates.build_apply_optimizer_finalizer(server_optimizer, weights_type),
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
    if any(isinstance(phase, RidgePhase) for phase in algorithm.phases):
        check_linear(model)
    check_lookups(model)


def finalized_metrics(model: PartitionedModel, sums: Mapping[str, Any]) -> Any:
    """Turns a cohort's metric sums into its training metrics."""
    finalizers = {metric.name: metric.finalize for metric in model.metrics}
    metrics = collections.OrderedDict(sums)
    for name, total in sums.items():
        if name in finalizers or name == "loss":
            mean = tf.math.divide_no_nan(total[0], total[1])
            metrics[name] = finalizers.get(name, tf.identity)(mean)
    metrics[f"num_{model.unit}"] = sums["loss"][1]
    return metrics


def _initial_weights(model: PartitionedModel, seed: int) -> tff.learning.models.ModelWeights:
    values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
    trainable = collections.OrderedDict((v.name, values[v.name]) for v in model.global_variables)
    return tff.learning.models.ModelWeights(trainable, ())


def _metric_sums(output: ClientOutput) -> collections.OrderedDict:
    sums = {k: tf.reduce_sum(v, 0) for k, v in output.metric_sums.items()}
    sums["num_examples"] = tf.reduce_sum(output.num_examples)
    sums["num_dropped_updates"] = tf.reduce_sum(output.dropped)
    return collections.OrderedDict(sorted(sums.items()))


def _member_sums(model, start, rows, output: ClientOutput) -> collections.OrderedDict:
    """Sums a stack of clients: weighted updates as whole variables, weights and metrics."""
    updates = collections.OrderedDict()
    for variable in model.global_variables:
        name, update = variable.name, output.updates[variable.name]
        weights = tf.ones_like(output.weights) if name in model.owned else output.weights
        # TFF's convention: an update points from the client's final value to the initial one.
        weighted = -update * tf.reshape(weights, [-1] + [1] * (update.shape.rank - 1))
        if name in model.global_tables:
            flat = tf.reshape(weighted, tf.concat([[-1], variable.shape[1:]], 0))
            updates[name] = _scatter(tf.reshape(rows[name], [-1]), flat, start[name])
        else:
            updates[name] = tf.reduce_sum(weighted, axis=0)
    return collections.OrderedDict(
        updates=updates, weight=tf.reduce_sum(output.weights), metrics=_metric_sums(output)
    )


def _scatter(rows: tf.Tensor, values: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Sums rows into zeros shaped like a table."""
    return tf.ensure_shape(tf.math.unsorted_segment_sum(values, rows, table.shape[0]), table.shape)


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
        output = train_clients(model, algorithm, start, examples, tf.stack([seed, round_number]))
        updates = collections.OrderedDict()
        for variable in model.global_variables:
            update = -output.updates[variable.name][0]
            if variable.name in model.tables:
                update = _scatter(examples.rows[variable.name][0], update, start[variable.name])
            updates[variable.name] = update
        return (
            tff.learning.templates.ClientResult(updates, output.weights[0]),
            _metric_sums(output),
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


def _weighted_aggregation(
    model: PartitionedModel, algorithm: Algorithm, aggregator: Any | None
) -> tff.aggregators.WeightedAggregationFactory:
    if aggregator is None:
        aggregator = tff.aggregators.MeanFactory()
    if isinstance(aggregator, tff.aggregators.UnweightedAggregationFactory):
        if algorithm.weighting != "uniform":
            raise ValueError(
                f"aggregator {type(aggregator).__name__} ignores weights; the algorithm must then "
                f"have weighting='uniform', not {algorithm.weighting!r}."
            )
        aggregator = tff.aggregators.as_weighted_aggregator(aggregator)
    return OwnedTablesFactory(aggregator, model.owned) if model.owned else aggregator
