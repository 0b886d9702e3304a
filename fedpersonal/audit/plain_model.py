"""A Keras model with variables of its own, applied plainly to one batch of one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.methods.phases import RidgePhase
from fedpersonal.model.names import CLUSTER, MIXING
from fedpersonal.model.noise import NoiseDraws, fold
from fedpersonal.model.partition import PartitionedModel

Gradients = dict[str, tf.Tensor]
Sums = dict[str, tf.Tensor]


def gradients_of(
    model: PartitionedModel,
    variables: Mapping[str, tf.Variable],
    moving: Collection[str],
    differentiate: Callable[[tuple[str, ...]], tuple[Gradients, Sums]],
) -> tuple[Gradients, Sums]:
    """Differentiates a batch's loss by variables that move, some of which may be personal.

    Args:
        model: The partitioned model.
        variables: All variables, those of the Keras model among them.
        moving: The names of those that move.
        differentiate: Maps names of the Keras model's variables to the loss' gradients with the
            values that they have, and to metric sums.
    """
    copied = set(model.copies.values())
    own = {*moving} & {*model.copies, MIXING}
    plain = tuple(name for name in moving if name not in own)
    if not own:
        return differentiate(plain)
    is_offset = model.role == "offset"
    both = copied & {*plain}
    gradients, sums = differentiate(plain) if both and not is_offset else ({}, {})
    shared = {name: variables[name].numpy() for name in copied}
    alpha = variables[MIXING].numpy() if MIXING in variables else 1.0
    copies = {source: variables[name].numpy() for name, source in model.copies.items()}
    for name, value in copies.items():
        # A row stands in for the whole table.
        whole = np.broadcast_to(value, shared[name].shape)
        of_shared = 1.0 if is_offset else 1.0 - alpha
        variables[name].assign(alpha * whole + of_shared * shared[name])
    rest = tuple(name for name in plain if name not in copied or is_offset)
    slopes, personal_sums = differentiate(tuple(dict.fromkeys((*copied, *rest))))
    for name, value in shared.items():
        variables[name].assign(value)
    for name in rest:
        gradients[name] = gradients.get(name, 0.0) + slopes[name]
    for name in own - {MIXING}:
        slope = alpha * slopes[model.copies[name]]
        is_row = name in model.own_rows
        gradients[name] = tf.reduce_sum(slope, 0, keepdims=True) if is_row else slope
    if MIXING in own:
        along = [tf.reduce_sum((copies[k] - shared[k]) * slopes[k]) for k in sorted(copied)]
        gradients[MIXING] = tf.add_n(along)
    return gradients, sums or personal_sums


Arrays = Mapping[str, np.ndarray]


class Client(NamedTuple):
    """A client's examples: input name to (n, ...), and labels (n, ...)."""

    features: Arrays
    labels: np.ndarray


class PlainModel:
    """A partitioned model's Keras model, its variables, and those that clients have beside it.

    Attributes:
        model: The partitioned model.
        adds_losses: Whether it adds losses to that of the data.
    """

    def __init__(self, model: PartitionedModel):
        """Builds the Keras model."""
        self.model = model
        created: list[tf.Variable] = []

        def record(next_creator, **kwargs):
            created.append(next_creator(**kwargs))
            return created[-1]

        inputs = {
            name: tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
            for name, spec in model.input_spec.items()
        }
        with tf.variable_creator_scope(record):
            self._keras = model.build()
            self._keras(model.arrange(inputs), training=False)
        self.adds_losses = bool(self._keras.losses)
        own = {variable.ref() for variable in self._keras.weights}
        variables = [variable for variable in created if variable.ref() in own]
        assert len(variables) == len(model.all_variables)
        self._variables = {v.name: real for v, real in zip(model.all_variables, variables)}
        for variable in model.all_variables:
            if variable.is_frozen:
                self._variables[variable.name].assign(model.frozen.array(variable.name))
        for variable in model.variables:
            if variable.is_personal or variable.is_state:
                self._variables[variable.name] = tf.Variable(tf.zeros(variable.shape))
        # Of clustered variables the Keras model has the chosen cluster's value.
        self._applied = dict(self._variables)
        for name in model.clustered:
            shape = next(v.shape for v in model.variables if v.name == name)
            self._variables[name] = tf.Variable(tf.zeros(shape))
        if model.num_clusters:
            self._variables[CLUSTER].assign(np.eye(model.num_clusters)[0])
        self._steps: dict[tuple[str, ...], tf.types.experimental.GenericFunction] = {}

    def apply_cluster(self) -> int:
        """Gives the Keras model the values of the chosen cluster, which it returns."""
        cluster = int(np.argmax(self._variables[CLUSTER])) if self.model.num_clusters else 0
        for name in self.model.clustered:
            self._applied[name].assign(self._variables[name].numpy()[..., cluster])
        return cluster

    def predict(self, client: Client) -> np.ndarray:
        """Returns the model's output for examples, with its variables as they are."""
        self.apply_cluster()
        return self._keras(self.model.arrange(_tensors(client.features)), training=False).numpy()

    def loss(self, client: Client) -> float:
        """Returns the summed loss of examples, outside of training."""
        model, labels = self.model, tf.constant(client.labels)
        losses = model.example_losses(labels, tf.constant(self.predict(client)))
        for added in self._keras.losses:
            losses += model.example_weights(labels) * added
        return float(tf.reduce_sum(losses))

    def added_losses(self, client: Client, values: Arrays) -> float:
        """Returns the sum of the losses that the model adds, with some values of its variables."""
        for name, value in values.items():
            self._variables[name].assign(value)
        self.predict(client)
        return float(sum(tf.reduce_sum(loss).numpy() for loss in self._keras.losses))

    def _gradients(self, moving: tuple[str, ...], batch: Client, noise: tf.Tensor):
        """Differentiates the mean loss of a batch, and sums its metrics."""
        arguments = _tensors(batch.features), tf.constant(batch.labels), noise
        cluster = self.apply_cluster()
        gradients, sums = gradients_of(
            self.model, self._variables, moving, lambda names: self._step(names)(*arguments)
        )
        for name in self.model.clustered & gradients.keys():
            whole = np.zeros(self._variables[name].shape, np.float32)
            whole[..., cluster] = gradients[name]
            gradients[name] = tf.constant(whole)
        return gradients, sums

    def _step(self, moving: tuple[str, ...]) -> tf.types.experimental.GenericFunction:
        """Returns what differentiates the mean loss of a batch, and sums its metrics."""
        if moving not in self._steps:
            self._steps[moving] = tf.function(
                lambda *batch: self._differentiate(moving, *batch), reduce_retracing=True
            )
        return self._steps[moving]

    def _differentiate(self, moving, features, labels, noise):
        model = self.model
        count = tf.shape(labels)[0]
        if model.draws_noise:
            NoiseDraws(fold(noise, tf.range(count))).give_to(self._keras)
        variables = {name: self._applied[name] for name in moving}
        with tf.GradientTape() as tape:
            output = self._keras(model.arrange(features), training=True)
            weights = model.example_weights(labels)
            losses = model.example_losses(labels, output)
            for added in self._keras.losses:
                losses += weights * added
            mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))
        gradients = tape.gradient(
            mean, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        predictions = model.as_labels(output)
        sums = {"loss": (losses, weights)}
        for metric in model.metrics:
            own = weights if metric.example_weight is None else metric.example_weight(labels)
            sums[metric.name] = metric.example_value(labels, predictions), own
        added = {
            name: tf.stack([tf.reduce_sum(tf.cast(t, tf.float32)) for t in pair])
            for name, pair in sums.items()
        }
        added["num_examples"] = tf.cast(count, tf.float32)
        return {name: tf.convert_to_tensor(g) for name, g in gradients.items()}, added

    def _solve(self, phase: RidgePhase, batches: Sequence[Client]) -> None:
        """Solves for the local variables by the normal equations, in float64."""
        local = [v for v in self.model.local_variables if phase.moves(v)]
        for variable in local:
            self._variables[variable.name].assign(np.zeros(variable.shape, np.float32))
        rows, residuals = [np.zeros((0, sum(v.size for v in local)))], [np.zeros(0)]
        for batch in batches:
            with tf.GradientTape() as tape:
                output = self._keras(self.model.arrange(_tensors(batch.features)), training=False)
                output = tf.reshape(output, [-1])
            slopes = tape.jacobian(
                output,
                [self._variables[v.name] for v in local],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            rows.append(np.concatenate([s.numpy().reshape(len(output), -1) for s in slopes], 1))
            residuals.append(batch.labels.reshape(-1) - output.numpy())
        bias_l2 = phase.l2 if phase.bias_l2 is None else phase.bias_l2
        penalty = [bias_l2 if v.size == 1 else phase.l2 for v in local for _ in range(v.size)]
        design, wanted = np.concatenate(rows).astype(np.float64), np.concatenate(residuals)
        solution = np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ wanted)
        for variable, part in zip(
            local, np.split(solution, np.cumsum([v.size for v in local])[:-1])
        ):
            self._variables[variable.name].assign(part.reshape(variable.shape))


def _tensors(features: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(column) for name, column in features.items()}
