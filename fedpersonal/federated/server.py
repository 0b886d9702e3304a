"""What shards send and what the server does with it.

In the server's state, a `tff.learning.templates.LearningAlgorithmState`,
`global_model_weights.trainable` maps each global variable's name to its value, and `client_work` is
the number of rounds so far.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal import tff
from fedpersonal.client.one_gradient import count_steps, may_step_together, step_together
from fedpersonal.client.pooled import train_in_turn
from fedpersonal.client.steps import ClientOutput, train_clients
from fedpersonal.client.values import Examples, align
from fedpersonal.federated.boundary import Folding
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.partition import PartitionedModel, Values


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


def weighted_sum(model: PartitionedModel, start: Values) -> Summary:
    """Returns the usual summary, `sum_clients`; `start` are the global variables."""
    return Summary(
        lambda examples, output: sum_clients(model, start, examples.rows, output),
        is_weighted_sum=True,
    )


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
        folding: The types of what shards add up, where an aggregator does that; None for sums.
    """

    initialize: tff.Computation
    finish: Callable[[Any, Any], tuple[Any, Any]]
    summary: Callable[[Values, Any], Summary]
    tell: Callable[[Any], Any] | None = None
    told_type: tff.Type | None = None
    folding: Folding | None = None

    @property
    def state_type(self) -> tff.StructType:
        """The TFF type of the state."""
        return self.initialize.type_signature.result.member


def initial_weights(model: PartitionedModel, seed: int) -> tff.ModelWeights:
    """Returns initial global variables, by name; needs a graph."""
    values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
    trainable = collections.OrderedDict((v.name, values[v.name]) for v in model.global_variables)
    return tff.ModelWeights(trainable, ())


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
    optimizer: tff.Optimizer,
    *,
    seed: int,
    averaging: Averaging | None = None,
) -> Server:
    """Returns the server of shards that send `sum_clients`, or other sums to average.

    Each computation costs a copy of the weights, so there is one for all that it does.
    """
    averaging = averaging or _weighted_mean(model)

    @tff.tf_computation
    def initial_state():
        weights = initial_weights(model, seed)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
        return tff.LearningAlgorithmState(
            weights, (), 0, averaging.first, optimizer.initialize(specs)
        )

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    def finish(state, sums):
        @tff.tf_computation(state.type_signature.member, sums.type_signature.member)
        def update(state, sums):
            weights = state.global_model_weights.trainable
            number = state.client_work
            mean, averaging_state, measured = averaging.of(state.aggregator, sums, number)
            optimizer_state, weights = optimizer.next(state.finalizer, weights, mean)
            new_weights = tff.ModelWeights(weights, ())
            new_state = tff.LearningAlgorithmState(
                new_weights, (), number + 1, averaging_state, optimizer_state
            )
            metrics = finalized_metrics(model, sums["metrics"])
            metrics.update(measured)
            return new_state, metrics

        return tff.federated_map(update, (state, tff.federated_sum(sums)))

    def summary(start: Values, told: None) -> Summary:
        del told
        return weighted_sum(model, start)

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

    Clients without examples come last; `packing` is `stacked` or `pooled`.

    Returns:
        The sums; and, where they are kept, local variable's name to (C, ...) after the round.
    """

    def in_turn() -> tuple[collections.OrderedDict, Values]:
        return train_in_turn(
            model,
            algorithm,
            global_values,
            examples,
            seed,
            summary.of,
            local,
            merge=summary.merge,
            empty=summary.empty,
        )

    def together() -> tuple[collections.OrderedDict, Values]:
        return step_together(model, algorithm, global_values, examples, seed, local)

    may_add_up = summary.is_weighted_sum and may_step_together(model, algorithm)
    if packing == "pooled" and may_add_up:
        return _first_if_finite(count_steps(algorithm, examples) == 1, together, in_turn)
    if packing == "pooled":
        return in_turn()
    output = train_clients(model, algorithm, global_values, examples, seed, local)
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
    model: PartitionedModel, start: Values, rows: Mapping[str, tf.Tensor], output: ClientOutput
) -> collections.OrderedDict:
    """Sums over a shard's clients: weighted updates as whole variables, weights and metrics.

    `rows` are those of lookup tables that each client touches, int32 (C, R).
    """
    updates = collections.OrderedDict()
    for variable in model.global_variables:
        name, update = variable.name, output.updates[variable.name]
        weights = tf.ones_like(output.weights) if name in model.owned else output.weights
        # TFF's convention: an update points from the client's final value to the initial one.
        weighted = -update * align(weights, update.shape.rank)
        if name in model.global_tables:
            flat = tf.reshape(weighted, tf.concat([[-1], variable.shape[1:]], 0))
            updates[name] = _scatter_rows(tf.reshape(rows[name], [-1]), flat, start[name])
        else:
            updates[name] = tf.reduce_sum(weighted, axis=0)
    return collections.OrderedDict(
        updates=updates, weight=tf.reduce_sum(output.weights), metrics=sum_metrics(output)
    )


def client_update(
    model: PartitionedModel,
    start: Values,
    rows: Mapping[str, tf.Tensor],
    output: ClientOutput,
    client: tf.Tensor | int,
) -> collections.OrderedDict:
    """Returns what one of a shard's clients sends, as whole variables, in their order."""
    update = collections.OrderedDict()
    for name in (v.name for v in model.global_variables):
        # As in `sum_clients`.
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
