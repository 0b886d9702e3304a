"""What the server does: its first state, and how what a cohort sends changes it.

In its state, a `tff.learning.templates.LearningAlgorithmState`, `global_model_weights.trainable`
maps each global variable's name to its value, and `client_work` is the number of rounds so far.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.client.stacked import ClientOutput
from fedpersonal.client.values import Examples
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.process.aggregation import create_aggregation
from fedpersonal.process.inlining import named_scalars
from fedpersonal.process.round_sums import Summary, client_update, sum_metrics, weighted_sum

State = tff.learning.templates.LearningAlgorithmState


class Server(NamedTuple):
    """The server's part of a process, and what it wants of shards.

    Attributes:
        initialize: Returns the first state, at SERVER.
        finish: Of the state and of what each shard sends, at CLIENTS: returns the next state and
            the cohort's metrics, inside a federated computation.
        summary: Of the global variables and of what the server tells: how a shard makes of its
            clients what it sends.
        tell: Of the state: what the server tells shards beside its weights, at CLIENTS, inside a
            federated computation; None for nothing.
        told_type: Its TFF type.
    """

    initialize: tff.Computation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    summary: Callable[[Values, Any], Summary]
    tell: Callable[[Any], Any] | None = None
    told_type: tff.Type | None = None

    @property
    def state_type(self) -> tff.StructType:
        """The TFF type of the state."""
        return self.initialize.type_signature.result.member


def initial_weights(model: PartitionedModel, seed: int) -> tff.learning.models.ModelWeights:
    """Returns initial global variables, by name; needs a graph."""
    values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
    trainable = collections.OrderedDict((v.name, values[v.name]) for v in model.global_variables)
    return tff.learning.models.ModelWeights(trainable, ())


class Averaging(NamedTuple):
    """How a server makes of sums the mean of its clients' updates.

    Attributes:
        first: Its first state, arrays.
        of: Maps its state, the sums and the round's number, from 0 on, to the mean by name, the
            next state, and metrics.
    """

    first: Any
    of: Callable[[Any, Any, tf.Tensor], tuple[collections.OrderedDict, Any, Mapping[str, Any]]]


def _weighted_mean(model: PartitionedModel) -> Averaging:
    """Returns the mean weighted by `sums["weight"]`; of owned tables the sum."""

    def of(state: Any, sums: Any, round_number: tf.Tensor) -> tuple:
        del state, round_number
        mean = collections.OrderedDict(sums["updates"])
        for name, total in sums["updates"].items():
            if name not in model.owned:
                mean[name] = tf.math.divide_no_nan(total, sums["weight"])
        return mean, (), {}

    return Averaging((), of)


def summing_server(
    model: PartitionedModel,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    seed: int,
    averaging: Averaging | None = None,
) -> Server:
    """Returns the server of shards that send `round_sums.sum_clients`, or other sums to average.

    Each computation costs a copy of the weights, so there is one for all that it does.
    """
    averaging = averaging or _weighted_mean(model)

    @tff.tensorflow.computation
    def initial_state():
        weights = initial_weights(model, seed)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
        return State(weights, (), 0, averaging.first, optimizer.initialize(specs))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    def finish(state, sums):
        @tff.tensorflow.computation(state.type_signature.member, sums.type_signature.member)
        def update(state, sums):
            weights = state.global_model_weights.trainable
            number = state.client_work
            mean, averaging_state, measured = averaging.of(state.aggregator, sums, number)
            optimizer_state, weights = optimizer.next(state.finalizer, weights, mean)
            new_weights = tff.learning.models.ModelWeights(weights, ())
            new_state = State(new_weights, (), number + 1, averaging_state, optimizer_state)
            metrics = finalized_metrics(model, sums["metrics"])
            metrics.update(measured)
            return new_state, metrics

        return tff.federated_map(update, (state, tff.federated_sum(sums)))

    def summary(start: Values, told: None) -> Summary:
        del told
        return weighted_sum(model, start)

    return Server(initialize, finish, summary)


def aggregating_server(
    model: PartitionedModel,
    optimizer: tff.learning.optimizers.Optimizer,
    aggregator: tff.aggregators.WeightedAggregationFactory,
    *,
    seed: int,
) -> Server:
    """Returns the server of shards that send one client's `update`, `weight` and `metrics`."""
    aggregation, weights_type, initialize, next_state = aggregating_states(
        model, optimizer, aggregator, seed=seed
    )

    def finish(state, sent):
        aggregated = aggregation.next(state.aggregator, sent["update"], sent["weight"])
        new_state = next_state(state, aggregated.result, aggregated.state)
        sums = tff.federated_sum(sent["metrics"])
        measurements = aggregated.measurements
        measured_type = measurements.type_signature.member
        metrics = tff.tensorflow.computation(
            lambda sums, measured: with_measurements(model, sums, measured_type, measured),
            sums.type_signature.member,
            measured_type,
        )
        return new_state, tff.federated_map(metrics, (sums, measurements))

    def summary(start: Values, told: None) -> Summary:
        def of(examples: Examples, output: ClientOutput) -> collections.OrderedDict:
            update = client_update(model, start, examples.rows, output, 0)
            metrics = sum_metrics(output)
            return collections.OrderedDict(update=update, weight=output.weights[0], metrics=metrics)

        return Summary(of)

    return Server(initialize, finish, summary)


def aggregating_states(
    model: PartitionedModel,
    optimizer: tff.learning.optimizers.Optimizer,
    aggregator: tff.aggregators.WeightedAggregationFactory,
    *,
    seed: int,
) -> tuple[
    tff.templates.AggregationProcess,
    tff.StructType,
    tff.Computation,
    Callable[[Any, Any, Any], Any],
]:
    """Returns an aggregator's process, the weights' type, and what makes a server's states.

    The first state comes of a computation, at SERVER; the next one of a function of a state, the
    mean update and the aggregator's next state, inside a federated computation.
    """
    first_weights = tff.tensorflow.computation(lambda: initial_weights(model, seed))
    weights_type = first_weights.type_signature.result
    aggregation = create_aggregation(aggregator, weights_type.trainable)
    finalizer = tff.learning.templates.build_apply_optimizer_finalizer(optimizer, weights_type)
    add_one = tff.tensorflow.computation(lambda n: n + 1, np.int32)

    @tff.federated_computation
    def initialize():
        weights = tff.federated_eval(first_weights, tff.SERVER)
        round_number = tff.federated_value(0, tff.SERVER)
        parts = (aggregation.initialize(), finalizer.initialize())
        return tff.federated_zip(State(weights, (), round_number, *parts))

    def next_state(state, mean, aggregator_state):
        finalized = finalizer.next(state.finalizer, state.global_model_weights, mean)
        round_number = tff.federated_map(add_one, state.client_work)
        return tff.federated_zip(
            State(finalized.result, (), round_number, aggregator_state, finalized.state)
        )

    return aggregation, weights_type, initialize, next_state


def with_measurements(
    model: PartitionedModel, sums: Mapping[str, Any], measured_type: tff.Type, measurements: Any
) -> collections.OrderedDict:
    """Returns a cohort's training metrics, and among them what its aggregator measured."""
    metrics = finalized_metrics(model, sums)
    measured = named_scalars(measured_type, measurements)
    if measured:
        metrics["aggregator"] = measured
    return metrics


def finalized_metrics(model: PartitionedModel, sums: Mapping[str, Any]) -> collections.OrderedDict:
    """Turns a cohort's metric sums into its training metrics."""
    finalizers = {metric.name: metric.finalize for metric in model.metrics}
    metrics = collections.OrderedDict(sums)
    for name, total in sums.items():
        if name in finalizers or name == "loss":
            mean = tf.math.divide_no_nan(total[0], total[1])
            value = finalizers.get(name, tf.identity)(mean)
            # Where nobody counts there is no loss: 0 would be the best of all rounds.
            nothing = tf.fill(tf.shape(value), tf.constant(np.nan, value.dtype))
            metrics[name] = tf.where(total[1] > 0, value, nothing)
    metrics[f"num_{model.unit}"] = sums["loss"][1]
    return metrics
