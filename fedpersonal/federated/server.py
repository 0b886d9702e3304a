"""What shards send and what the server does with it."""

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
from fedpersonal.client.values import Examples, align, starting_values, with_rows
from fedpersonal.federated.boundary import Folding
from fedpersonal.federated.states import StatefulServer, sum_states
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec


class Weights(NamedTuple):
    """The global variables: name to value. None of them is `non_trainable`."""

    trainable: Any
    non_trainable: Any = ()


class State(NamedTuple):
    """The server's state, whose fields have the names that TFF's learning processes give them.

    Attributes:
        global_model_weights: The global variables.
        client_work: The number of rounds so far.
        aggregator: What the next aggregation needs of the former ones.
        finalizer: The state of the server's optimizer.
    """

    global_model_weights: Weights
    client_work: Any
    aggregator: Any
    finalizer: Any


class Summary(NamedTuple):
    """How a shard makes of its clients what it sends.

    Attributes:
        of: Maps clients' examples and their output to what is sent of them.
        merge: Makes one of what is sent of two groups of clients; None where it is their sum.
        empty: Maps zeros to what is sent of no clients; None where it is the zeros.
        is_weighted_sum: Whether it is `sum_clients`, which may come of one gradient.
    """

    of: Callable[[Examples, ClientOutput], collections.OrderedDict]
    merge: Callable[[Any, Any], Any] | None = None
    empty: Callable[[Any], Any] | None = None
    is_weighted_sum: bool = False


def weighted_sum(
    model: PartitionedModel, start: Values, sent: Sequence[VariableSpec] = ()
) -> Summary:
    """Returns the usual summary, `sum_clients`; `start` are the global variables."""
    return Summary(
        lambda examples, output: sum_clients(model, start, examples.rows, output, sent),
        is_weighted_sum=not sent,
    )


class Server(NamedTuple):
    """The server's part of a process, and what it wants of shards.

    Attributes:
        initialize: Returns the first state, at SERVER.
        finish: Of the state and of what each shard sends, at CLIENTS: returns the next state and
            the cohort's metrics, inside a federated computation.
        summary: Of the global variables and of what the server broadcasts: how a shard makes of its
            clients what it sends.
        broadcast: Of the state: what the server sends shards beside its weights, at CLIENTS, inside
            a federated computation; None for nothing.
        broadcast_type: Its TFF type.
        folding: The types of what shards add up, where an aggregator does that; None for sums.
    """

    initialize: tff.Computation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    summary: Callable[[Values, Any], Summary]
    broadcast: Callable[[Any], Any] | None = None
    broadcast_type: tff.Type | None = None
    folding: Folding | None = None

    @property
    def state_type(self) -> tff.StructType:
        """The TFF type of the state."""
        return self.initialize.type_signature.result.member


class Mean(NamedTuple):
    """The mean of clients' updates, and what comes with it.

    Attributes:
        of: Weight's name to the mean.
        state: The averaging's next state.
        metrics: Metrics by name.
        states: State's name to the sum of what clients have sent to move it.
        updates: Weight's name to the sum of updates; empty where that is not known.
        counts: Whether anybody's update counts, bool; None where the server must not know.
    """

    of: collections.OrderedDict
    state: Any
    metrics: Mapping[str, Any]
    states: Values
    updates: Values
    counts: tf.Tensor | None


class Averaging(NamedTuple):
    """How a server makes of sums the mean of its clients' updates.

    Attributes:
        first: Its first state, arrays.
        of: Maps its state, the sums and the round's number, from 0 on, to the mean.
        add_up: Adds up what shards send, inside a federated computation.
        skips: Whether a mean may be no number where no update counts.
    """

    first: Any
    of: Callable[[Any, Any, tf.Tensor], Mean]
    add_up: Callable[[Any], Any] = tff.federated_sum
    skips: bool = False


def _weighted_mean(model: PartitionedModel) -> Averaging:
    """Returns the mean weighted by `sums["weight"]`; of owned tables the sum."""

    def of(state: Any, sums: Any, round_number: tf.Tensor) -> Mean:
        del state, round_number
        mean = collections.OrderedDict(sums["updates"])
        # Of nobody it is 0. `divide_no_nan` takes several times longer.
        weight = sums["weight"]
        divisor = tf.where(weight > 0, weight, np.inf)
        for name, total in sums["updates"].items():
            if name not in model.owned:
                mean[name] = total / divisor
        return Mean(mean, (), {}, sums.get("states", {}), sums["updates"], weight > 0)

    return Averaging((), of)


def summing_server(
    model: PartitionedModel,
    optimizer: StatefulServer,
    *,
    seed: int,
    averaging: Averaging | None = None,
) -> Server:
    """Returns the server of shards that send `sum_clients`, or other sums to average.

    Each computation costs a copy of the weights, so there is one for all that it does.
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
            mean = averaging.of(state.aggregator, sums, number)
            optimizer_state, weights = optimizer.next(
                state.finalizer,
                weights,
                mean.of,
                mean.states,
                updates=mean.updates,
                counts=mean.counts,
                skips=averaging.skips,
            )
            new_state = State(Weights(weights), number + 1, mean.state, optimizer_state)
            metrics = finalized_metrics(model, sums["metrics"])
            metrics.update(mean.metrics)
            return new_state, metrics

        return tff.federated_map(update, (state, sums))

    def summary(start: Values, received: None) -> Summary:
        del received
        return weighted_sum(model, start, optimizer.sent)

    return Server(initialize, finish, summary)


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


def train_and_sum(
    model: PartitionedModel,
    algorithm: Algorithm,
    global_values: Values,
    examples: Examples,
    seed: tf.Tensor,
    *,
    summary: Summary,
    packing: str,
    local: Values | None = None,
) -> tuple[collections.OrderedDict, Values]:
    """Trains many clients, as `train_clients` does, and sums what of them is aggregated.

    Args:
        model: The partitioned model.
        algorithm: The phases.
        global_values: Global variable's name to the value that the server broadcast.
        examples: The clients' examples; clients without any come last.
        seed: int32 of shape (2,), from which local variables start.
        summary: What is aggregated.
        packing: `stacked` or `pooled`.
        local: What the clients' local variables start from, (C, ...); None for a draw.

    Returns:
        The sums; and, where they are kept, local variable's name to (C, ...) after the round.
    """
    start = starting_values(model, global_values, examples, seed, local)

    def in_turn() -> tuple[collections.OrderedDict, Values]:
        merge, empty = summary.merge, summary.empty
        known = with_rows(model, examples) if may_add_up else examples
        return train_in_turn(model, algorithm, start, known, summary.of, merge=merge, empty=empty)

    def together() -> tuple[collections.OrderedDict, Values]:
        return step_together(model, algorithm, start, examples)

    may_add_up = summary.is_weighted_sum and may_step_together(model, algorithm)
    if packing == "pooled" and may_add_up:
        return _first_if_finite(count_steps(algorithm, examples) == 1, together, in_turn)
    if packing == "pooled":
        return in_turn()
    output = train_clients(model, algorithm, start, examples)
    return summary.of(examples, output), output.local_values if algorithm.keeps else {}


def _first_if_finite(condition: tf.Tensor, first: Callable[[], Any], second: Callable[[], Any]):
    """Returns the first's result where a condition holds and it is finite, else the second's."""
    spec = tf.function(first, autograph=False).get_concrete_function().structured_outputs
    zeros = tf.nest.map_structure(lambda t: tf.zeros(t.shape, t.dtype), spec)
    attempt = tf.cond(condition, first, lambda: zeros)
    is_finite = [tf.reduce_all(tf.math.is_finite(part)) for part in tf.nest.flatten(attempt)]
    good = tf.reduce_all([condition, *is_finite])
    return tf.cond(good, lambda: attempt, second)


def sum_clients(
    model: PartitionedModel,
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
    sent: Sequence[VariableSpec] = (),
) -> collections.OrderedDict:
    """Sums over a shard's clients: weighted updates as whole variables, weights and metrics.

    `rows` are those of lookup tables that each client touches, int32 (C, R). What is `sent` of
    states is summed apart.
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
    """Sums clients' updates of some variables, weighted unless of owned tables."""
    updates = collections.OrderedDict()
    for variable in variables:
        name, update = variable.name, output.updates[variable.name]
        weights = tf.ones_like(output.weights) if name in model.owned else output.weights
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
    """Returns what one of a shard's clients sends of some variables, whole, in their order."""
    update = collections.OrderedDict()
    for name in (v.name for v in variables):
        # As in `sum_updates`.
        update[name] = -output.updates[name][client]
        if name in model.global_tables:
            update[name] = _scatter_rows(rows[name][client], update[name], start[name])
    return update


def sum_metrics(output: ClientOutput) -> collections.OrderedDict:
    """Sums metrics and counts over clients."""
    sums = {k: tf.reduce_sum(v, 0) for k, v in output.metric_sums.items()}
    sums["num_examples"] = tf.reduce_sum(output.num_examples)
    sums["num_dropped_updates"] = tf.reduce_sum(output.dropped)
    return collections.OrderedDict(sorted(sums.items()))


def _scatter_rows(rows: tf.Tensor, values: tf.Tensor, table: tf.Tensor) -> tf.Tensor:
    """Sums rows into zeros shaped like a table."""
    return tf.ensure_shape(tf.math.unsorted_segment_sum(values, rows, table.shape[0]), table.shape)
