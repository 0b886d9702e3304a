"""A Keras model with its variables, applied plainly to one batch of one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from fedpersonal.methods.phases import RidgePhase
from fedpersonal.model.keras import are_probabilities, weights_of
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
    """Differentiates a batch's loss by moving variables, which may include personal copies.

    Args:
        model: The partitioned model.
        variables: All variables, with those of the Keras model.
        moving: The names of the moving variables.
        differentiate: Maps names of the Keras model's variables to the loss' gradients at their
            present values, and to metric sums.
    """
    copied = set(model.copies.values())
    personal = {*moving} & {*model.copies, MIXING}
    plain = tuple(name for name in moving if name not in personal)
    if not personal:
        return differentiate(plain)
    is_offset = model.role == "offset"
    both = copied & {*plain}
    gradients, sums = differentiate(plain) if both and not is_offset else ({}, {})
    shared = {name: variables[name].numpy() for name in copied}
    alpha = variables[MIXING].numpy() if MIXING in variables else 1.0
    copies = {source: variables[name].numpy() for name, source in model.copies.items()}
    for name, value in copies.items():
        # A client's single row is used for every row of the table.
        whole = np.broadcast_to(value, shared[name].shape)
        shared_weight = 1.0 if is_offset else 1.0 - alpha
        variables[name].assign(alpha * whole + shared_weight * shared[name])
    rest = tuple(name for name in plain if name not in copied or is_offset)
    slopes, personal_sums = differentiate(tuple(dict.fromkeys((*copied, *rest))))
    for name, value in shared.items():
        variables[name].assign(value)
    for name in rest:
        gradients[name] = gradients.get(name, 0.0) + slopes[name]
    for name in personal - {MIXING}:
        slope = alpha * slopes[model.copies[name]]
        is_row = name in model.per_client_rows
        gradients[name] = tf.reduce_sum(slope, 0, keepdims=True) if is_row else slope
    if MIXING in personal:
        along = [tf.reduce_sum((copies[k] - shared[k]) * slopes[k]) for k in sorted(copied)]
        gradients[MIXING] = tf.add_n(along)
    return gradients, sums or personal_sums


Arrays = Mapping[str, np.ndarray]


class Client(NamedTuple):
    """A client's examples and name.

    Attributes:
        features: Input name to (n, ...).
        labels: (n, ...).
        name: The client's name.
    """

    features: Arrays
    labels: np.ndarray
    name: str = ""

    def at(self, places: np.ndarray | slice) -> Client:
        """Returns the examples at some places."""
        features = {name: column[places] for name, column in self.features.items()}
        return self._replace(features=features, labels=self.labels[places])


class PlainModel:
    """A partitioned model's Keras model, its variables, and clients' other variables.

    Attributes:
        model: The partitioned model.
        adds_losses: Whether the model adds losses to the data loss.
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
        weights = {variable.ref() for variable in weights_of(self._keras)}
        variables = [variable for variable in created if variable.ref() in weights]
        assert len(variables) == len(model.all_variables)
        self._variables = {v.name: real for v, real in zip(model.all_variables, variables)}
        for variable in model.all_variables:
            if variable.is_frozen:
                self._variables[variable.name].assign(model.frozen.array(variable.name))
        for variable in model.variables:
            if variable.is_personal or variable.is_state:
                self._variables[variable.name] = tf.Variable(tf.zeros(variable.shape))
        # The Keras model has the chosen cluster's values of clustered variables.
        self._applied = dict(self._variables)
        for name in model.clustered:
            shape = next(v.shape for v in model.variables if v.name == name)
            self._variables[name] = tf.Variable(tf.zeros(shape))
        if model.num_clusters:
            self._variables[CLUSTER].assign(np.eye(model.num_clusters)[0])
        self._steps: dict[tuple[str, ...], tf.types.experimental.GenericFunction] = {}

    def apply_cluster(self, cluster: int | None = None) -> int:
        """Assigns a cluster's values, by default the chosen one's, and returns the cluster."""
        if cluster is None:
            cluster = int(np.argmax(self._variables[CLUSTER])) if self.model.num_clusters else 0
        for name in self.model.clustered:
            self._applied[name].assign(self._variables[name].numpy()[..., cluster])
        return cluster

    def predict(self, client: Client) -> np.ndarray:
        """Returns the model's output for examples at the variables' present values."""
        return self._apply(client)[0].numpy()

    def _apply(self, client: Client) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the output and the losses that the model adds, in inference mode."""
        if self.model.mixes:
            outputs, added = self.cluster_outputs(client)
            return self.mix_outputs(outputs), added
        self.apply_cluster()
        output = self._keras(self.model.arrange(_as_tensors(client.features)), training=False)
        return output, self._keras.losses

    def cluster_outputs(self, client: Client) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns each cluster's output, and its added losses divided by the number of clusters."""
        outputs, added, features = [], [], self.model.arrange(_as_tensors(client.features))
        for cluster in range(self.model.num_clusters):
            self.apply_cluster(cluster)
            outputs.append(self._keras(features, training=False))
            added += [loss / self.model.num_clusters for loss in self._keras.losses]
        return outputs, added

    def mix_outputs(
        self, outputs: Sequence[tf.Tensor], weights: tf.Tensor | None = None
    ) -> tf.Tensor:
        """Mixes clusters' outputs by weights, by default the client's."""
        weights = tf.constant(self._variables[CLUSTER].numpy()) if weights is None else weights
        shares = tf.math.log(tf.unstack(weights / tf.reduce_sum(weights)))
        has_probabilities = are_probabilities(outputs[0])
        if outputs[0].shape[-1] > 1:
            log_of = tf.math.log if has_probabilities else tf.nn.log_softmax
            logs = tf.reduce_logsumexp([w + log_of(o) for w, o in zip(shares, outputs)], 0)
            return tf.exp(logs) if has_probabilities else logs
        if has_probabilities:
            return tf.add_n([tf.exp(w) * o for w, o in zip(shares, outputs)])
        one, other = (
            tf.reduce_logsumexp(
                [w + tf.math.log_sigmoid(side * o) for w, o in zip(shares, outputs)], 0
            )
            for side in (1.0, -1.0)
        )
        return one - other

    def loss(self, client: Client) -> float:
        """Returns the summed loss of examples, in inference mode."""
        model, labels = self.model, tf.constant(client.labels)
        output, added = self._apply(client)
        losses = model.example_losses(labels, output)
        for loss in added:
            losses += model.example_weights(labels) * loss
        return float(tf.reduce_sum(losses))

    def added_losses(self, client: Client, values: Arrays) -> float:
        """Returns the sum of the losses that the model adds, at the given values of variables."""
        for name, value in values.items():
            self._variables[name].assign(value)
        return float(sum(tf.reduce_sum(loss).numpy() for loss in self._apply(client)[1]))

    def _gradients(self, moving: tuple[str, ...], batch: Client, noise: tf.Tensor):
        """Differentiates the mean loss of a batch, and sums its metrics."""
        arguments = _as_tensors(batch.features), tf.constant(batch.labels), noise
        if self.model.mixes:
            return self._mixed_gradients(moving, *arguments)
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
        """Returns a traced function of `_differentiate` for the moving variables."""
        if moving not in self._steps:
            self._steps[moving] = tf.function(
                lambda *batch: self._differentiate(moving, *batch), reduce_retracing=True
            )
        return self._steps[moving]

    def _mixed_gradients(self, moving, features, labels, noise):
        """Differentiates as `_gradients` for a mixture of clusters.

        It differentiates by clusters' outputs, then by each cluster's values.
        """
        tapes, outputs, added = [], [], []
        for cluster in range(self.model.num_clusters):
            self.apply_cluster(cluster)
            self._give_noise(labels, noise)
            with tf.GradientTape() as tape:
                outputs.append(self._keras(self.model.arrange(features), training=True))
                added.append([loss / self.model.num_clusters for loss in self._keras.losses])
            tapes.append(tape)
        with tf.GradientTape() as tape:
            tape.watch([outputs, added])
            mean, sums = self._loss_and_sums(
                labels, self.mix_outputs(outputs), [loss for losses in added for loss in losses]
            )
        gradients = {k: np.zeros(self._variables[k].shape, np.float32) for k in moving}
        slopes = tape.gradient(mean, [outputs, added])
        for cluster, parts in enumerate(zip(tapes, outputs, added, *slopes)):
            cluster_tape, output, losses, *upstream = parts
            cluster_gradients = cluster_tape.gradient(
                [output, *losses],
                {name: self._applied[name] for name in moving},
                output_gradients=[upstream[0], *upstream[1]],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            for name, gradient in cluster_gradients.items():
                part, value = gradients[name], tf.convert_to_tensor(gradient)
                part[(..., cluster) if name in self.model.clustered else ...] += value
        return {name: tf.constant(value) for name, value in gradients.items()}, sums

    def _give_noise(self, labels, noise):
        if self.model.draws_noise:
            NoiseDraws(fold(noise, tf.range(tf.shape(labels)[0]))).give_to(self._keras)

    def _differentiate(self, moving, features, labels, noise):
        self._give_noise(labels, noise)
        variables = {name: self._applied[name] for name in moving}
        with tf.GradientTape() as tape:
            output = self._keras(self.model.arrange(features), training=True)
            mean, sums = self._loss_and_sums(labels, output, self._keras.losses)
        gradients = tape.gradient(
            mean, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return {name: tf.convert_to_tensor(g) for name, g in gradients.items()}, sums

    def _loss_and_sums(self, labels, output, added):
        """Returns the mean loss of a batch, with added losses, and metric sums."""
        model, weights = self.model, self.model.example_weights(labels)
        losses = model.example_losses(labels, output)
        for loss in added:
            losses += weights * loss
        mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))
        sums = {"loss": (losses, weights)}
        for metric in model.metrics:
            sums[metric.name] = model.metric_values(metric, labels, output)
        totals = {
            name: tf.stack([tf.reduce_sum(tf.cast(t, tf.float32)) for t in pair])
            for name, pair in sums.items()
        }
        totals["num_examples"] = tf.cast(tf.shape(labels)[0], tf.float32)
        return mean, totals

    def _solve(self, phase: RidgePhase, batches: Sequence[Client]) -> None:
        """Solves for the local variables by the normal equations, in float64."""
        local = [v for v in self.model.local_variables if phase.moves(v)]
        for variable in local:
            self._variables[variable.name].assign(np.zeros(variable.shape, np.float32))
        rows, residuals = [np.zeros((0, sum(v.size for v in local)))], [np.zeros(0)]
        for batch in batches:
            with tf.GradientTape() as tape:
                output = self._keras(
                    self.model.arrange(_as_tensors(batch.features)), training=False
                )
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
        design, targets = np.concatenate(rows).astype(np.float64), np.concatenate(residuals)
        solution = np.linalg.solve(design.T @ design + np.diag(penalty), design.T @ targets)
        for variable, part in zip(
            local, np.split(solution, np.cumsum([v.size for v in local])[:-1])
        ):
            self._variables[variable.name].assign(part.reshape(variable.shape))


def _as_tensors(features: Arrays) -> dict[str, tf.Tensor]:
    return {name: tf.constant(column) for name, column in features.items()}
