"""The reduction that each shard sends, and the server's aggregation and update."""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.one_gradient import count_steps, may_step_together, step_together
from fedpersonal.client.pooled import train_in_turn
from fedpersonal.client.steps import ClientOutput, train_clients
from fedpersonal.client.values import Examples, add_missing_rows, align, starting_values
from fedpersonal.federated.boundary import ReductionTypes
from fedpersonal.federated.states import StatefulServer, sum_states
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec


class Weights(NamedTuple):
    """The global variables: name to value. None of them is `non_trainable`."""

    trainable: Any
    non_trainable: Any = ()


class State(NamedTuple):
    """The server's state, with the field names of TFF's learning processes.

    Attributes:
        global_model_weights: The global variables.
        client_work: The number of rounds so far.
        aggregator: The state of the aggregation.
        finalizer: The state of the server's optimizer.
    """

    global_model_weights: Weights
    client_work: Any
    aggregator: Any
    finalizer: Any


class ShardReduction(NamedTuple):
    """The reduction of a shard's clients to the structure that the shard sends.

    Attributes:
        reduce: Maps clients' examples and their output to their reduction.
        merge: Merges the reductions of two groups of clients; None if it adds them.
        empty: Maps zeros to the reduction of no clients; None if it returns the zeros.
        is_weighted_sum: Whether it is `sum_clients`, which a single gradient may compute.
    """

    reduce: Callable[[Examples, ClientOutput], collections.OrderedDict]
    merge: Callable[[Any, Any], Any] | None = None
    empty: Callable[[Any], Any] | None = None
    is_weighted_sum: bool = False


def weighted_sum(
    model: PartitionedModel, start: Values, sent: Sequence[VariableSpec] = ()
) -> ShardReduction:
    """Returns the usual reduction, `sum_clients`; `start` are the global variables."""
    return ShardReduction(
        lambda examples, output: sum_clients(model, start, examples.rows, output, sent),
        is_weighted_sum=not sent,
    )


class Server(NamedTuple):
    """The server's part of a process.

    Attributes:
        initialize: Returns the first state, at SERVER.
        finish: Maps the state and the shards' reductions, at CLIENTS, to the next state and the
            cohort's metrics, inside a federated computation.
        reduction: Maps the global variables and the extra broadcast to the shards' reduction.
        broadcast: Maps the state to the extra broadcast, at CLIENTS, inside a federated
            computation; None if the server broadcasts its weights alone.
        broadcast_type: The TFF type of the extra broadcast.
        reduction_types: The types of an aggregator's reduction in shards; None if shards send sums.
    """

    initialize: tff.Computation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    reduction: Callable[[Values, Any], ShardReduction]
    broadcast: Callable[[Any], Any] | None = None
    broadcast_type: tff.Type | None = None
    reduction_types: ReductionTypes | None = None

    @property
    def state_type(self) -> tff.StructType:
        """The TFF type of the state."""
        return self.initialize.type_signature.result.member


class Mean(NamedTuple):
    """The mean of clients' updates, with the other results of averaging.

    Attributes:
        values: Weight's name to the mean.
        state: The averaging's next state.
        metrics: Metrics by name.
        states: State's name to the sum of clients' changes of it.
        updates: Weight's name to the sum of updates; empty if the server does not get that sum.
        has_updates: Whether any client's update counts, bool; None if the server must not know.
    """

    values: collections.OrderedDict
    state: Any
    metrics: Mapping[str, Any]
    states: Values
    updates: Values
    has_updates: tf.Tensor | None


class Averaging(NamedTuple):
    """The server's computation of the mean of clients' updates.

    Attributes:
        first: Its first state, arrays.
        average: Maps its state, the sums and the round's number, which starts at 0, to the mean.
        add_up: Adds up the shards' reductions, inside a federated computation.
        skips_empty_rounds: Whether the mean may be undefined in a round without updates.
    """

    first: Any
    average: Callable[[Any, Any, tf.Tensor], Mean]
    add_up: Callable[[Any], Any] = tff.federated_sum
    skips_empty_rounds: bool = False


def _weighted_mean(model: PartitionedModel) -> Averaging:
    """Returns the mean weighted by `sums["weight"]`; for tables with a row per client, the sum."""

    def average(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        del state, round_number
        mean = collections.OrderedDict(sums["updates"])
        # The mean of no updates is 0. `divide_no_nan` takes several times longer.
        weight = sums["weight"]
        divisor = tf.where(weight > 0, weight, np.inf)
        for name, total in sums["updates"].items():
            if name not in model.server_rows_per_client:
                mean[name] = total / divisor
        return Mean(mean, (), {}, sums.get("states", {}), sums["updates"], weight > 0)

    return Averaging((), average)


def summing_server(
    model: PartitionedModel,
    optimizer: StatefulServer,
    *,
    seed: int,
    averaging: Averaging | None = None,
) -> Server:
    """Returns the server for shards that send `sum_clients`, or other sums to average.

    A single computation does the whole update, since each computation copies the weights.
    """
    averaging = averaging or _weighted_mean(model)
    names = [v.name for v in model.global_variables]

    @tff.tf_computation()
    def initial_state():
        values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
        weights = collections.OrderedDict((name, values[name]) for name in names)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights)
        return State(Weights(weights), 0, averaging.first, optimizer.initialize(specs))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    def finish(state, parts):
        sums = averaging.add_up(parts)

        @tff.tf_computation(state.type_signature.member, sums.type_signature.member)
        def update(state, sums):
            weights = state.global_model_weights.trainable
            number = state.client_work
            mean = averaging.average(state.aggregator, sums, number)
            optimizer_state, weights = optimizer.next(
                state.finalizer,
                weights,
                mean.values,
                mean.states,
                updates=mean.updates,
                has_updates=mean.has_updates,
                skips_empty_rounds=averaging.skips_empty_rounds,
            )
            new_state = State(Weights(weights), number + 1, mean.state, optimizer_state)
            metrics = finalize_metrics(model, sums["metrics"])
            metrics.update(mean.metrics)
            return new_state, metrics

        return tff.federated_map(update, (state, sums))

    def reduction(start: Values, received: None) -> ShardReduction:
        del received
        return weighted_sum(model, start, optimizer.sent_states)

    return Server(initialize, finish, reduction)


def finalize_metrics(model: PartitionedModel, sums: Mapping[str, Any]) -> collections.OrderedDict:
    """Turns a cohort's metric sums into its training metrics."""
    finalizers = {metric.name: metric.finalize for metric in model.metrics}
    metrics = collections.OrderedDict(sums)
    for name, total in sums.items():
        if name in finalizers or name == "loss":
            mean = tf.math.divide_no_nan(total[0], total[1])
            value = finalizers.get(name, tf.identity)(mean)
            # Without any weight the loss is undefined: 0 would be the best of all rounds.
            undefined = tf.fill(tf.shape(value), tf.constant(np.nan, value.dtype))
            metrics[name] = tf.where(total[1] > 0, value, undefined)
    metrics[f"num_{model.unit}"] = sums["loss"][1]
    return metrics


def train_and_sum(
    model: PartitionedModel,
    algorithm: Algorithm,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
    *,
    reduction: ShardReduction,
    packing: str,
    local: Values | None = None,
) -> tuple[collections.OrderedDict, Values]:
    """Trains many clients, as `train_clients` does, and reduces their output.

    Args:
        model: The partitioned model.
        algorithm: The phases.
        global_values: Global variable's name to the broadcast value.
        examples: The clients' examples; clients without any come last.
        seed: int32 of shape (2,), from which local variables start.
        reduction: The reduction of clients' output.
        packing: `stacked` or `pooled`.
        local: The initial values of clients' local variables, (C, ...); None to sample them.

    Returns:
        The reduction; and local variable's name to (C, ...) after the round, empty if clients keep
        none.
    """
    start = starting_values(model, global_values, examples, seed, local)

    def train_in_turns() -> tuple[collections.OrderedDict, Values]:
        with_rows = add_missing_rows(model, examples) if may_add_up else examples
        return train_in_turn(
            model,
            algorithm,
            start,
            with_rows,
            reduction.reduce,
            merge=reduction.merge,
            empty=reduction.empty,
        )

    def step_once() -> tuple[collections.OrderedDict, Values]:
        return step_together(model, algorithm, start, examples)

    may_add_up = reduction.is_weighted_sum and may_step_together(model, algorithm)
    if packing == "pooled" and may_add_up:
        return _first_if_finite(count_steps(algorithm, examples) == 1, step_once, train_in_turns)
    if packing == "pooled":
        return train_in_turns()
    output = train_clients(model, algorithm, start, examples)
    return reduction.reduce(examples, output), output.local_values if algorithm.keeps else {}


def _first_if_finite(condition: tf.Tensor, first: Callable[[], Any], second: Callable[[], Any]):
    """Returns the result of `first` if a condition holds and it is finite, else of `second`."""
    spec = tf.function(first, autograph=False).get_concrete_function().structured_outputs
    zeros = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), spec)
    attempt = tf.cond(condition, first, lambda: zeros)
    is_finite = [tf.reduce_all(tf.math.is_finite(part)) for part in tf.nest.flatten(attempt)]
    is_valid = tf.reduce_all([condition, *is_finite])
    return tf.cond(is_valid, lambda: attempt, second)


def sum_clients(
    model: PartitionedModel,
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
    sent: Sequence[VariableSpec] = (),
) -> collections.OrderedDict:
    """Sums over a shard's clients: weighted updates as whole variables, weights and metrics.

    `rows` has the rows of lookup tables that each client touches, int32 (C, R). Changes of the
    states in `sent` are summed apart.
    """
    moving = [v for v in model.global_variables if not v.is_state]
    return collections.OrderedDict(
        updates=sum_updates(model, moving, start, rows, output),
        weight=tf.reduce_sum(output.weights),
        **({"states": sum_states(sent, output)} if sent else {}),
        metrics=sum_metrics(output),
    )


def sum_updates(
    model: PartitionedModel,
    variables: Sequence[VariableSpec],
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
) -> collections.OrderedDict:
    """Sums clients' updates of variables, weighted except of tables with a row per client."""
    updates = collections.OrderedDict()
    for variable in variables:
        name, update = variable.name, output.updates[variable.name]
        weights = (
            tf.ones_like(output.weights) if name in model.server_rows_per_client else output.weights
        )
        # TFF's convention: an update points from the client's final value to the initial one.
        weighted = -update * align(weights, update.shape.rank)
        if name in model.global_tables:
            flat = tf.reshape(weighted, tf.concat([[-1], variable.shape[1:]], 0))
            updates[name] = _scatter_rows(tf.reshape(rows[name], [-1]), flat, start[name])
        else:
            updates[name] = tf.reduce_sum(weighted, axis=0)
    return updates


def client_update(
    model: PartitionedModel,
    variables: Sequence[VariableSpec],
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
    client: tf.Tensor | int,
) -> collections.OrderedDict:
    """Returns the update of one of a shard's clients: whole variables, in their order."""
    update = collections.OrderedDict()
    for name in (v.name for v in variables):
        # As in `sum_updates`.
        update[name] = -output.updates[name][client]
        if name in model.global_tables:
            update[name] = _scatter_rows(rows[name][client], update[name], start[name])
    return update


def sum_metrics(output: ClientOutput) -> collections.OrderedDict:
    """Sums a shard's metrics and counts over its clients."""
    sums = {k: tf.reduce_sum(v, 0) for k, v in output.metric_sums.items()}
    sums["num_examples"] = tf.reduce_sum(output.num_examples)
    sums["num_dropped_updates"] = tf.reduce_sum(output.dropped)
    return collections.OrderedDict(sorted(sums.items()))


def _scatter_rows(rows: tf.Tensor, values: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Sums rows into zeros shaped like a table."""
    return tf.ensure_shape(tf.math.unsorted_segment_sum(values, rows, table.shape[0]), table.shape)
