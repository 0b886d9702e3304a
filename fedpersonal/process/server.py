"""What the server does: its first state, and how a cohort's sums change it."""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from fedpersonal.model.partition import PartitionedModel
from fedpersonal.optimizers.keras import as_tff_optimizer

State = tff.learning.templates.LearningAlgorithmState


def initial_weights(model: PartitionedModel, seed: int) -> tff.learning.models.ModelWeights:
    """Returns initial global variables, by name; needs a graph."""
    values = model.initial_values(model.global_variables, tf.constant([seed, 0]))
    trainable = collections.OrderedDict((v.name, values[v.name]) for v in model.global_variables)
    return tff.learning.models.ModelWeights(trainable, ())


def build_initial_state(
    model: PartitionedModel, server_optimizer: Any, *, seed: int
) -> tff.Computation:
    """Returns a computation without arguments that gives the first `State`.

    Args:
        model: The partitioned model.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        seed: Seed of the global variables' initial values.
    """
    server_optimizer = as_tff_optimizer(server_optimizer)

    @tff.tensorflow.computation
    def initial_state():
        weights = initial_weights(model, seed)
        specs = tf.nest.map_structure(lambda w: tf.TensorSpec(w.shape, w.dtype), weights.trainable)
        return State(weights, (), 0, (), server_optimizer.initialize(specs))

    return initial_state


def build_server_update(
    model: PartitionedModel, server_optimizer: Any, state_type: tff.Type, sums_type: tff.Type
) -> tff.Computation:
    """Returns a computation of (state, sums) that gives the next state and the round's metrics.

    It is one for all that the server does: each one more costs a copy of the weights.

    Args:
        model: The partitioned model.
        server_optimizer: A `tff.learning.optimizers.Optimizer`.
        state_type: Of the state.
        sums_type: Of `round_sums.sum_clients`.
    """
    server_optimizer = as_tff_optimizer(server_optimizer)

    @tff.tensorflow.computation(state_type, sums_type)
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

    return server_update


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
