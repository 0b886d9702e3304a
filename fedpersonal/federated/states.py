"""The server's states, and the steps that move them and the weights.

SCAFFOLD's control variate, the sum that FedDyn's server keeps and the clusters that IFCA's clients
choose are states, not weights. Clients send changes of states apart from their updates, and the
server takes exact sums of them: no bound on updates and no aggregator applies. Differential privacy
bounds them by a separate norm.
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
    """A server's optimizer and its states.

    Attributes:
        weights: The names of the variables that the optimizer steps.
        sent_states: The states whose changes clients send apart from their updates.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: PartitionedModel,
        algorithm: Algorithm,
        *,
        num_clients: int | None,
        has_update_sums: bool,
    ):
        """Lists the states of a model and an algorithm.

        Args:
            optimizer: The optimizer of the weights.
            model: The partitioned model.
            algorithm: The clients' algorithm.
            num_clients: The number of all clients that may take part; None if no state needs it.
            has_update_sums: Whether the server gets the unweighted sum of updates, from which
                FedDyn's state follows; else clients send that sum in addition.

        Raises:
            UserError: If a state needs `num_clients`, which is missing.
        """
        self._optimizer, self._num_clients = optimizer, num_clients
        states = [v for v in model.global_variables if v.is_state]
        self.weights = [v.name for v in model.global_variables if not v.is_state]
        self._clustered = (
            model.clustered - model.server_rows_per_client if has_shares(model) else frozenset()
        )
        self._states = list(model.server_states)
        # The variables with a memory, of which clients have a state, too.
        copied = set(model.copies.values()) if algorithm.server_has_memory else set()
        with_memory = [v for v in model.global_variables if v.name in copied]
        self._with_memory = [v.name for v in with_memory]
        if not has_update_sums:
            names = {v.name: f"{SERVER_STATE}/{v.name}" for v in with_memory}
            states += [dataclasses.replace(v, name=names[v.name]) for v in with_memory]
        self.sent_states: Sequence[VariableSpec] = states
        if num_clients is None and (self._states or self._with_memory):
            raise UserError(
                f"{algorithm.name} needs num_clients, the number of all clients that may take part."
            )

    def initialize(self, specs: Mapping[str, tf.TensorSpec]) -> Any:
        """Returns the state before the first round; `specs` has variables' shapes by name."""
        inner = self._optimizer.initialize(_select(specs, self.weights))
        if not self._with_memory:
            return inner
        memory = ((k, tf.zeros(specs[k].shape, specs[k].dtype)) for k in self._with_memory)
        return collections.OrderedDict(memory=collections.OrderedDict(memory), optimizer=inner)

    def next(
        self,
        state: Any,
        weights: Values,
        mean: Values,
        sums: Values,
        *,
        updates: Values,
        has_updates: tf.Tensor | None,
        skips_empty_rounds: bool = False,
    ) -> tuple[Any, collections.OrderedDict]:
        """Returns the next state, and the global variables after a round.

        Args:
            state: The state before the round.
            weights: The global variables before the round.
            mean: The mean of clients' updates, initial minus final values, by weights' names.
            sums: Exact sums over clients of their changes of `sent_states`, by state's name.
            updates: The sums of updates, if clients send no sum for a state that needs one.
            has_updates: Whether any client's update counts; None if the server must not know. If
                none does, weights stay and the optimizer takes no step.
            skips_empty_rounds: Whether a round without updates must be skipped in any case, since
                its mean may be undefined.
        """
        slopes, inner, memory = dict(mean), state, collections.OrderedDict()
        if self._with_memory:
            inner = state["optimizer"]
            for name in self._with_memory:
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
                # The slope of a cluster that no client has chosen is 0.
                slopes[name] = tf.math.divide_no_nan(slopes[name], shares)
        before = inner, _select(weights, self.weights)

        def step() -> tuple[Any, Any]:
            moved = self._optimizer.next(*before, _select(slopes, self.weights))
            # Both branches of a condition must have the same containers.
            return tf.nest.pack_sequence_as(before, tf.nest.flatten(moved))

        if has_updates is not None and (skips_empty_rounds or memory or _has_memory(inner)):
            inner, moved = tf.cond(has_updates, step, lambda: before)
        else:
            inner, moved = self._optimizer.next(*before, _select(slopes, self.weights))
        if memory:
            inner = collections.OrderedDict(memory=memory, optimizer=inner)
        values = {**moved, **states}
        return inner, collections.OrderedDict((name, values[name]) for name in weights)


def has_shares(model: PartitionedModel) -> bool:
    """Returns whether the server divides by the number of clients that chose each cluster."""
    return any(v.name == CLUSTER_SHARES for v in model.global_variables)


def sum_states(variables: Sequence[VariableSpec], output: ClientOutput) -> collections.OrderedDict:
    """Sums a shard's clients' changes of states; choices of clusters are weighted as updates."""
    sums = collections.OrderedDict()
    for name in (v.name for v in variables):
        value = output.states[name]
        if name == CLUSTER_SHARES:
            value *= align(output.weights, value.shape.rank)
        sums[name] = tf.reduce_sum(value, 0)
    return sums


def _has_memory(state: Any) -> bool:
    """Returns whether an optimizer's state has more than scalars, such as momentum."""
    return any(value.shape.rank for value in map(tf.convert_to_tensor, tf.nest.flatten(state)))


def _select(values: Mapping[str, Any], names: Sequence[str]) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict((name, values[name]) for name in names)
