"""A client's round, written plainly, to compare with the values that a client sends.

It runs one client, batch after batch, with the Keras model and its variables, whole tables and no
padding, and shares no code with `fedpersonal.client`. Each variable has a separate optimizer, so
that an optimizer that carries values from one variable to another is noticed, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.audit.plain_model import Arrays, Client, PlainModel
from fedpersonal.data.shuffle import Shuffle
from fedpersonal.data.splits import is_in_part
from fedpersonal.methods.algorithm import Algorithm
from fedpersonal.methods.phases import (
    BlendPhase,
    ChoicePhase,
    GradientPhase,
    LookAhead,
    RidgePhase,
    count_passes,
)
from fedpersonal.model.names import BLEND, CLUSTER, CLUSTER_SHARES, COPY, MIXING, SERVER_STATE
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel
from fedpersonal.model.variables import VariableSpec
from fedpersonal.optimizers import as_tff_optimizer


class Expected(NamedTuple):
    """The expected result of a round.

    Attributes:
        updates: Global variable's name to its initial minus its final value, except for states.
        states: State's name to its change, which is sent apart from the updates.
        weight: The client's weight.
        sums: Metric name, and `loss`, to the sums of values and of weights, (2,); and the counts
            `num_examples` and `num_dropped_updates`.
        local: Local variable's name to its value before the last phase.
        kept: Local variable's name to its value after the round, which the client keeps.
    """

    updates: dict[str, np.ndarray]
    states: dict[str, np.ndarray]
    weight: float
    sums: dict[str, np.ndarray]
    local: dict[str, np.ndarray]
    kept: dict[str, np.ndarray]


class Reference(PlainModel):
    """Plain rounds of a model and an algorithm."""

    def __init__(
        self,
        model: PartitionedModel,
        algorithm: Algorithm,
        *,
        batch_size: int,
        seed: int,
        shuffle: Shuffle | None = None,
    ):
        """Builds the Keras model; other arguments are those of the process to compare with."""
        super().__init__(model)
        self._shuffle = shuffle
        self._algorithm, self._batch_size, self._seed = algorithm, batch_size, seed
        self._sample = tf.function(lambda s: model.initial_values(model.initialized_locals, s))

    def fresh_local_values(self, client: Client, round_number: int) -> dict[str, np.ndarray]:
        """Samples initial local variables, except copies, of a client that has kept none."""
        if not self.model.initialized_locals:
            return {}
        seed = _wrap(self._seed + _fingerprint(client)), _wrap(round_number)
        return {name: value.numpy() for name, value in self._sample(tf.constant(seed)).items()}

    def run(
        self,
        weights: Arrays,
        local: Arrays,
        client: Client,
        round_number: int,
        *,
        labels: np.ndarray | None = None,
    ) -> Expected:
        """Runs a round.

        Args:
            weights: Global variable's name to the value that the server has sent.
            local: Local variable's name to its initial value; missing copies start anew.
            client: The client's examples, in the data's order.
            round_number: The number of rounds before.
            labels: Labels in place of the client's; random numbers still follow from the client's.
        """
        noise = fold(fold(tf.zeros([], tf.uint64), self._seed), round_number)
        noise = fold(noise, _wrap(_fingerprint(client)))
        client = client if labels is None else client._replace(labels=labels)
        copies = {name: weights[source] for name, source in self.model.copies.items()}
        if self.model.role != "model":
            copies = {name: np.zeros_like(value) for name, value in copies.items()}
        for name, feature in self.model.per_client_rows.items():
            copies[name] = copies[name][client.features[feature].reshape(-1)[:1]]
        for name, value in {**weights, **copies, **local}.items():
            self._variables[name].assign(value)
        start = self._local_values()
        algorithm = self._algorithm.at_round(tf.constant(round_number))
        sums: dict[str, np.ndarray] = {}
        for phase, passes in zip(algorithm.phases, self._passes(client, round_number)):
            before = self._local_values()
            batches = self._batches(client, phase.data)
            if isinstance(phase, RidgePhase):
                self._solve(phase, batches)
            elif isinstance(phase, BlendPhase):
                steps = [b for one in passes for b in self._batches(one, phase.data)]
                self._blend(phase, steps, noise, copies)
                noise = fold(noise, -1)
            elif isinstance(phase, ChoicePhase):
                (self._weight_clusters if phase.mixes else self._choose_cluster)(phase, batches)
            else:
                assert isinstance(phase, GradientPhase)  # Rounds have no NeighboursPhase.
                steps = [b for one in passes for b in self._batches(one, phase.data)]
                if phase.passes is not None:
                    steps = steps[: int(phase.passes) * len(batches)]
                ahead = steps
                if phase.ahead is not None and phase.ahead.data is not None:
                    tables = [self._batches(one, phase.ahead.data) for one in passes]
                    ahead = [
                        tables[number // len(batches)][number % len(tables[0])]
                        for number in range(len(steps))
                    ]
                sums = self._train(phase, steps, ahead, noise, copies)
                noise = fold(noise, -1)
        self._assign(algorithm, weights, start, client)
        final = {name: name for name in weights}
        if algorithm.personal and algorithm.personal.are_sent:
            final.update({source: name for name, source in self.model.copies.items()})
        updates = {
            name: value - self._variables[final[name]].numpy() for name, value in weights.items()
        }
        states = self._states(algorithm, updates)
        is_uniform = algorithm.weighting == "uniform"
        weight = float(len(client.labels) > 0) if is_uniform else float(sums["loss"][1])
        is_finite = _are_finite({**updates, **states}) and bool(np.isfinite(sums["loss"][0]))
        sums["num_dropped_updates"] = np.asarray(float(not is_finite))
        if not is_finite:
            zeros = {name: np.zeros_like(total) for name, total in sums.items()}
            sums = {**zeros, "num_dropped_updates": sums["num_dropped_updates"]}
            updates, states = (
                {name: np.zeros_like(value) for name, value in values.items()}
                for values in (updates, states)
            )
            return Expected(updates, states, 0.0, sums, before, start)
        changes = {name: value - start[name] for name, value in self._local_values().items()}
        if not _are_finite(changes):
            changes = {name: np.zeros_like(value) for name, value in changes.items()}
        names = [v.name for v in self.model.local_variables if not v.is_state]
        changes.update(
            _clip({name: changes[name] for name in names}, algorithm.max_local_update_norm)
        )
        kept = {name: value + changes[name] for name, value in start.items()}
        updates = _clip(updates, algorithm.max_update_norm)
        return Expected(updates, states, weight, sums, before, kept)

    def _states(
        self, algorithm: Algorithm, updates: dict[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        """Removes states from the updates, and returns the changes of states that are sent."""
        states = {v.name: -updates.pop(v.name) for v in self.model.global_variables if v.is_state}
        if CLUSTER_SHARES in states:
            states[CLUSTER_SHARES] = self._variables[CLUSTER_SHARES].numpy()
        if algorithm.server_has_memory:
            for name in self.model.copies.values():
                states[f"{SERVER_STATE}/{name}"] = -updates[name]
        return states

    def _assign(self, algorithm: Algorithm, weights: Arrays, start: Arrays, client: Client) -> None:
        """Assigns states by the values before the phases and after the last one."""
        phase = algorithm.last_phase
        passes = int(phase.epochs if phase.passes is None else phase.passes)
        steps = len(self._batches(client, phase.data)) * passes
        steps = steps if phase.max_steps is None else min(steps, phase.max_steps)
        assigned = {}
        for one in algorithm.assignments if steps else ():
            for variable in self.model.global_variables:
                name = variable.name
                states = {"personal": f"{COPY}/{name}", "server": f"{SERVER_STATE}/{name}"}
                if states["personal"] not in start:
                    continue
                now, copy = self._variables[name].numpy(), start[states["personal"]]
                values = {"sent": weights[name], "shared": now, "personal": copy}
                values["server"] = weights.get(states["server"])
                if "slope" in one.terms:
                    state = _optimizer_of(phase, variable).initialize({})
                    rate = np.asarray(state["learning_rate"])
                    values["slope"] = (weights[name] - now) / (steps * rate)
                terms = [factor * values[term] for term, factor in one.terms.items()]
                assigned[states[one.of]] = sum(terms)
        for name, value in assigned.items():
            self._variables[name].assign(value)

    def _local_values(self) -> dict[str, np.ndarray]:
        return {v.name: self._variables[v.name].numpy() for v in self.model.local_variables}

    def _batches(self, client: Client, part: str) -> list[Client]:
        """Returns the batches of a part of a client's data."""
        starts = range(0, len(client.labels), self._batch_size)
        rows = [slice(start, start + self._batch_size) for start in starts]
        batches = [client.at(r) for r in rows]
        return [b for i, b in enumerate(batches) if is_in_part(part, i, len(batches))]

    def _passes(self, client: Client, round_number: int) -> list[list[Client]]:
        """Returns the client's examples in the order of each pass of each phase."""
        epochs = [getattr(phase, "epochs", 0) for phase in self._algorithm.phases]
        if self._shuffle is None:
            return [[client] * count for count in epochs]
        (orders,) = self._shuffle.orders([client.name], [len(client.labels)], round_number)
        shuffled = [client.at(order) for order in orders]
        if not self._shuffle.is_each_pass:
            return [shuffled * count for count in epochs]
        passes = []
        for phase in self._algorithm.phases:
            count = count_passes(phase)
            passes.append(shuffled[:count])
            del shuffled[:count]
        return passes

    def _train(
        self,
        phase: GradientPhase,
        steps: Sequence[Client],
        ahead: Sequence[Client],
        noise: tf.Tensor,
        sent: Arrays,
    ) -> dict[str, np.ndarray]:
        """Takes a phase's steps, and sums the metrics of each batch before its step.

        `steps` has the batches of all passes, and `ahead` those of looking ahead; `sent` has the
        anchors of personal copies.
        """
        moving = [v for v in self.model.variables if phase.moves(v)]
        optimizers = {v.name: _optimizer_of(phase, v) for v in moving}
        start = {v.name: self._variables[v.name].numpy() for v in moving}
        names = tuple(start)
        anchors = {v.name: start[v.name] for v in moving if not v.is_local}
        anchors.update({name: value for name, value in sent.items() if name in start})
        states = {
            name: optimizer.initialize({name: tf.TensorSpec(start[name].shape, start[name].dtype)})
            for name, optimizer in optimizers.items()
        }
        sums = {metric.name: np.zeros(2) for metric in self.model.metrics}
        sums.update(loss=np.zeros(2), num_examples=np.zeros(()))
        for number, batch in enumerate(steps[: phase.max_steps]):
            now = {name: self._variables[name].numpy() for name in names}
            seed = fold(noise, number)
            if phase.ahead is not None:
                self._look_ahead(phase.ahead, now, ahead[number], seed)
            gradients, added = self._gradients(names, batch, seed)
            for name, value in added.items():
                sums[name] = sums[name] + value.numpy()
            for name in names:
                gradient, value = gradients[name], self._variables[name]
                if phase.ahead is not None and phase.ahead.envelope:
                    gradient = phase.ahead.envelope * (now[name] - tf.convert_to_tensor(value))
                elif phase.proximal and name in anchors:
                    gradient += phase.proximal * (now[name] - anchors[name])
                for term, factor in phase.corrections.items():
                    state = f"{COPY if term == 'personal' else SERVER_STATE}/{name}"
                    if state in self._variables:
                        gradient += factor * self._variables[state]
                states[name], moved = optimizers[name].next(
                    states[name], {name: tf.constant(now[name])}, {name: gradient}
                )
                value.assign(tf.clip_by_value(moved[name], 0, 1) if name == MIXING else moved[name])
            self._constrain(names)
        return sums

    def _blend(
        self, phase: BlendPhase, steps: Sequence[Client], noise: tf.Tensor, sent: Arrays
    ) -> None:
        """Steps the shares of copies' ways to the sent values, then moves copies by them."""
        copies = {name: self._variables[name].numpy() for name in sent}
        ways = {name: sent[name] - value for name, value in copies.items()}
        shares = {name: self._variables[name.replace(COPY, BLEND, 1)] for name in sent}
        steps = steps[: phase.max_steps]

        def move_copies() -> None:
            for name, value in copies.items():
                self._variables[name].assign(value + shares[name].numpy() * ways[name])

        for number, batch in enumerate(steps):
            move_copies()
            slopes, _ = self._gradients(tuple(copies), batch, fold(noise, number))
            for name, share in shares.items():
                moved = share.numpy() - phase.rate * slopes[name].numpy() * ways[name]
                share.assign(np.clip(moved, 0.0, 1.0))
        if steps:
            move_copies()

    def _choose_cluster(self, phase: ChoicePhase, batches: Sequence[Client]) -> None:
        """Chooses the cluster of the least loss."""
        if not batches:
            return
        losses = []
        for choice in np.eye(phase.clusters):
            self._variables[CLUSTER].assign(choice)
            losses.append(np.nan_to_num(sum(map(self.loss, batches)), nan=np.inf))
        chosen = np.eye(phase.clusters)[np.argmin(losses)]
        for name in {CLUSTER, CLUSTER_SHARES} & self._variables.keys():
            self._variables[name].assign(chosen)

    def _weight_clusters(self, phase: ChoicePhase, batches: Sequence[Client]) -> None:
        """Weights the clusters by the mean probability that each has made a label."""
        weights = self._variables[CLUSTER]
        for _ in range(phase.epochs if batches else 0):
            slopes, count = np.zeros(phase.clusters), 0.0
            for batch in batches:
                labels, (outputs, _) = (
                    tf.constant(batch.labels),
                    self.cluster_outputs(batch),
                )
                with tf.GradientTape() as tape:
                    output = self.mix_outputs(outputs, tf.convert_to_tensor(weights))
                    loss = tf.reduce_sum(self.model.example_losses(labels, output))
                slopes = slopes - tape.gradient(loss, weights).numpy()
                count += float(tf.reduce_sum(self.model.example_weights(labels)))
            if count:
                weights.assign(weights * (1.0 + slopes / count))

    def _look_ahead(self, ahead: LookAhead, now: Arrays, batch: Client, noise: tf.Tensor) -> None:
        """Takes the look-ahead steps before a step of a phase, from the variables' values."""
        optimizer = as_tff_optimizer(ahead.optimizer)
        states = {
            name: optimizer.initialize({name: tf.TensorSpec(value.shape, value.dtype)})
            for name, value in now.items()
        }
        for number in range(ahead.steps):
            gradients, _ = self._gradients(tuple(now), batch, fold(noise, number))
            for name, start in now.items():
                value = tf.convert_to_tensor(self._variables[name])
                gradient = gradients[name] + ahead.envelope * (value - start)
                states[name], moved = optimizer.next(states[name], {name: value}, {name: gradient})
                self._variables[name].assign(moved[name])
            self._constrain(tuple(now))

    def _constrain(self, names: tuple[str, ...]) -> None:
        """Applies the variables' constraints after a step."""
        for variable in self.model.variables:
            if variable.constraint is not None and variable.name in names:
                value = self._variables[variable.name]
                value.assign(variable.constraint(tf.convert_to_tensor(value)))


def _optimizer_of(phase: GradientPhase, variable: VariableSpec):
    key = variable.first_name(phase.optimizers)
    if key is None and variable.is_local and "local" in phase.optimizers:
        key = "local"
    return as_tff_optimizer(phase.optimizer if key is None else phase.optimizers[key])


def _are_finite(values: Arrays) -> bool:
    return all(np.isfinite(value).all() for value in values.values())


def _clip(changes: dict[str, np.ndarray], bound: float | None) -> dict[str, np.ndarray]:
    """Scales changes down to a norm, taken over all variables."""
    if bound is None:
        return changes
    norm = np.sqrt(sum(np.sum(np.square(c, dtype=np.float64)) for c in changes.values()))
    return {name: c * (bound / max(norm, bound)) for name, c in changes.items()}


def _fingerprint(client: Client) -> int:
    """Returns the seed of a client's random numbers: the sum of all its columns' bits."""
    columns = [np.ascontiguousarray(c) for c in (*client.features.values(), client.labels)]
    words = [c.view(np.int32) if c.dtype.itemsize == 4 else c.astype(np.int32) for c in columns]
    return _wrap(sum(int(w.astype(np.int64).sum()) for w in words))


def _wrap(number: int) -> int:
    """Wraps an integer as int32 arithmetic does."""
    return (number + 2**31) % 2**32 - 2**31
