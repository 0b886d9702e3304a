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

from fedpersonal.model.partition import PartitionedModel

State = tff.learning.templates.LearningAlgorithmState


class Server(NamedTuple):
    """The server's part of a process.

    Attributes:
        initialize: Returns the first state, at SERVER.
        finish: Of the state and of what each shard sends, at CLIENTS: returns the next state and
            the cohort's metrics, inside a federated computation.
    """

    initialize: tff.Computation
    finish: Callable[[Any, Any], tuple[Any, Any]]

    @property
    def state_type(self) -> tff.StructType:
        """The TFF type of the state."""
        return self.initialize.type_signature.result.member


def initial_weights(model: PartitionedModel, seed: int) -> tff.learning.models.ModelWeights:
    """Returns initial global variables, by name; needs a graph."""
    values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
    trainable = collections.OrderedDict((v.name, values[v.name]) for v in model.global_variables)
    return tff.learning.models.ModelWeights(trainable, ())


def summing_server(
    model: PartitionedModel, optimizer: tff.learning.optimizers.Optimizer, *, seed: int
) -> Server:
    """Returns the server of shards that send `round_sums.sum_clients`.

    Each computation costs a copy of the weights, so there is one for all that it does.
    """

    @tff.tensorflow.computation
    def initial_state():
        weights = initial_weights(model, seed)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
        return State(weights, (), 0, (), optimizer.initialize(specs))

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(initial_state, tff.SERVER)

    def finish(state, sums):
        @tff.tensorflow.computation(state.type_signature.member, sums.type_signature.member)
        def update(state, sums):
            weights = state.global_model_weights.trainable
            mean = collections.OrderedDict(sums["updates"])
            for name, total in sums["updates"].items():
                if name not in model.owned:
                    mean[name] = tf.math.divide_no_nan(total, sums["weight"])
            optimizer_state, weights = optimizer.next(state.finalizer, weights, mean)
            new_weights = tff.learning.models.ModelWeights(weights, ())
            new_state = State(new_weights, (), state.client_work + 1, (), optimizer_state)
            return new_state, finalized_metrics(model, sums["metrics"])

        return tff.federated_map(update, (state, tff.federated_sum(sums)))

    return Server(initialize, finish)


def aggregating_server(
    model: PartitionedModel,
    optimizer: tff.learning.optimizers.Optimizer,
    aggregator: tff.aggregators.WeightedAggregationFactory,
    *,
    seed: int,
) -> Server:
    """Returns the server of shards that send one client's `update`, `weight` and `metrics`."""
    first_weights = tff.tensorflow.computation(lambda: initial_weights(model, seed))
    weights_type = first_weights.type_signature.result
    aggregation = aggregator.create(weights_type.trainable, tff.TensorType(np.float32))
    finalizer = tff.learning.templates.build_apply_optimizer_finalizer(optimizer, weights_type)
    add_one = tff.tensorflow.computation(lambda n: n + 1, np.int32)

    @tff.federated_computation
    def initialize():
        weights = tff.federated_eval(first_weights, tff.SERVER)
        round_number = tff.federated_value(0, tff.SERVER)
        parts = (aggregation.initialize(), finalizer.initialize())
        return tff.federated_zip(State(weights, (), round_number, *parts))

    def finish(state, sent):
        weights = state.global_model_weights
        aggregated = aggregation.next(state.aggregator, sent["update"], sent["weight"])
        finalized = finalizer.next(state.finalizer, weights, aggregated.result)
        round_number = tff.federated_map(add_one, state.client_work)
        new_state = tff.federated_zip(
            State(finalized.result, (), round_number, aggregated.state, finalized.state)
        )
        sums = tff.federated_sum(sent["metrics"])
        metrics = tff.tensorflow.computation(
            lambda sums: finalized_metrics(model, sums), sums.type_signature.member
        )
        return new_state, tff.federated_map(metrics, sums)

    return Server(initialize, finish)


def finalized_metrics(model: PartitionedModel, sums: Mapping[str, Any]) -> collections.OrderedDict:
    """Turns a cohort's metric sums into its training metrics."""
    finalizers = {metric.name: metric.finalize for metric in model.metrics}
    metrics = collections.OrderedDict(sums)
    for name, total in sums.items():
        if name in finalizers or name == "loss":
            mean = tf.math.divide_no_nan(total[0], total[1])
            metrics[name] = finalizers.get(name, tf.identity)(mean)
    metrics[f"num_{model.unit}"] = sums["loss"][1]
    return metrics
