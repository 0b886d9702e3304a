"""The server's states: what moves them, apart from the weights that its optimizer steps.

SCAFFOLD's control variate, the sum that FedDyn's server remembers and the clusters that IFCA's
clients choose are no weights. Clients send what moves them apart from their updates, and the server
takes exact sums of it: no bound on updates and no aggregator changes them. Differential privacy
bounds them by a norm of their own.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from fedpersonal.client.steps import ClientOutput
from fedpersonal.client.values import align
from fedpersonal.errors import UserError
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.model.names import CLUSTER_SHARES, SERVER_STATE
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.model.variables import VariableSpec
from fedpersonal.optimizers import Optimizer


class StatefulServer:
    """A server's optimizer, and the states that the server has beside the weights.

    Attributes:
        weights: The names of the variables that the optimizer steps.
        sent: What clients send apart from their updates: states, as variables.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: PartitionedModel,
        algorithm: Algorithm,
        *,
        num_clients: int | None,
        sums_updates: bool,
    ):
        """Finds out which states there are.

        Args:
            optimizer: What steps the weights.
            model: The partitioned model.
            algorithm: What a client does.
            num_clients: The number of all clients that may take part; None where no state needs it.
            sums_updates: Whether the sum of the updates that count is known, each as it is: FedDyn
                sends no further sum then.

        Raises:
            UserError: If a state needs `num_clients`, which is missing.
        """
        self._optimizer, self._num_clients = optimizer, num_clients
        states = [v for v in model.global_variables if v.is_state]
        self.weights = [v.name for v in model.global_variables if not v.is_state]
        self._clustered = model.clustered - model.owned if has_shares(model) else frozenset()
        self._states = list(model.server_states)
        # The variables of which clients have a state, too.
        copied = set(model.copies.values()) if algorithm.server_remembers else set()
        remembered = [v for v in model.global_variables if v.name in copied]
        self._remembered = [v.name for v in remembered]
        if not sums_updates:
            names = {v.name: f"{SERVER_STATE}/{v.name}" for v in remembered}
            states += [dataclasses.replace(v, name=names[v.name]) for v in remembered]
        self.sent: Sequence[VariableSpec] = states
        if num_clients is None and (self._states or self._remembered):
            raise UserError(
                f"{algorithm.name} needs num_clients, the number of all clients that may take part."
            )

    def initialize(self, specs: Mapping[str, tf.TensorSpec]) -> Any:
        """Returns the state before the first round, of values of these shapes, by name."""
        inner = self._optimizer.initialize(_chosen(specs, self.weights))
        if not self._remembered:
            return inner
        memory = ((k, tf.zeros(specs[k].shape, specs[k].dtype)) for k in self._remembered)
        return collections.OrderedDict(memory=collections.OrderedDict(memory), optimizer=inner)

    def next(
        self,
        state: Any,
        weights: Values,
        mean: Values,
        sums: Values,
        *,
        updates: Values,
        counts: tf.Tensor | None,
        skips: bool = False,
    ) -> tuple[Any, collections.OrderedDict]:
        """Returns the next state, and the global variables after a round.

        Args:
            state: The state before it.
            weights: The global variables before it.
            mean: The mean of clients' updates, initial minus final values, by weights' names.
            sums: Exact sums over clients of what is `sent`.
            updates: The sums of updates, where no sum is sent for a state that needs it.
            counts: Whether anybody's update counts; None where the server must not know. Weights
                that nobody has an update of stay, and the optimizer waits.
            skips: Whether it must wait, since the mean may be no number then.
        """
        slopes, inner, memory = dict(mean), state, collections.OrderedDict()
        if self._remembered:
            inner = state["optimizer"]
            for name in self._remembered:
                sent = sums.get(f"{SERVER_STATE}/{name}")
                moved = updates[name] if sent is None else -sent
                memory[name] = state["memory"][name] + moved / self._num_clients
                slopes[name] += memory[name]
        states = {name: weights[name] + sums[name] / self._num_clients for name in self._states}
        if self._clustered:
            total = tf.reduce_sum(sums[CLUSTER_SHARES])
            shares = tf.math.divide_no_nan(sums[CLUSTER_SHARES], total)
            states[CLUSTER_SHARES] = tf.where(total > 0, shares, weights[CLUSTER_SHARES])
            for name in self._clustered:
                # Of a cluster that nobody has chosen it is 0.
                slopes[name] = tf.math.divide_no_nan(slopes[name], shares)
        before = inner, _chosen(weights, self.weights)

        def step() -> tuple[Any, Any]:
            moved = self._optimizer.next(*before, _chosen(slopes, self.weights))
            # Else the branches of a condition differ in their containers.
            return tf.nest.pack_sequence_as(before, tf.nest.flatten(moved))

        if counts is not None and (skips or memory or _remembers(inner)):
            inner, moved = tf.cond(counts, step, lambda: before)
        else:
            inner, moved = self._optimizer.next(*before, _chosen(slopes, self.weights))
        if memory:
            inner = collections.OrderedDict(memory=memory, optimizer=inner)
        everything = {**moved, **states}
        return inner, collections.OrderedDict((name, everything[name]) for name in weights)


def has_shares(model: PartitionedModel) -> bool:
    """Tells whether the server divides by how many clients have chosen each cluster."""
    return any(v.name == CLUSTER_SHARES for v in model.global_variables)


def sum_states(variables: Sequence[VariableSpec], output: ClientOutput) -> collections.OrderedDict:
    """Sums what a shard's clients send of states; choices are weighted as updates are."""
    sums = collections.OrderedDict()
    for name in (v.name for v in variables):
        value = output.states[name]
        if name == CLUSTER_SHARES:
            value *= align(output.weights, value.shape.rank)
        sums[name] = tf.reduce_sum(value, 0)
    return sums


def _remembers(state: Any) -> bool:
    """Tells whether an optimizer's state has more than numbers, such as momentum."""
    return any(value.shape.rank for value in map(tf.convert_to_tensor, tf.nest.flatten(state)))


def _chosen(values: Mapping[str, Any], names: Sequence[str]) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict((name, values[name]) for name in names)
