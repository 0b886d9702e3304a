"""A Keras model with variables of its own, applied plainly to one batch of one client at a time."""

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
    """A client's examples: input name to (n, ...), and labels (n, ...); and the client's name."""

    features: Arrays
    labels: np.ndarray
    name: str = ""

    def at(self, places: np.ndarray | slice) -> Client:
        """Returns the examples at some places."""
        features = {name: column[places] for name, column in self.features.items()}
        return self._replace(features=features, labels=self.labels[places])


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
        own = {variable.ref() for variable in weights_of(self._keras)}
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

    def apply_cluster(self, cluster: int | None = None) -> int:
        """Gives the Keras model the values of a cluster, by default the chosen one; returns it."""
        if cluster is None:
            cluster = int(np.argmax(self._variables[CLUSTER])) if self.model.num_clusters else 0
        for name in self.model.clustered:
            self._applied[name].assign(self._variables[name].numpy()[..., cluster])
        return cluster

    def predict(self, client: Client) -> np.ndarray:
        """Returns the model's output for examples, with its variables as they are."""
        return self._apply(client)[0].numpy()

    def _apply(self, client: Client) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Returns the output, and the losses that the model adds, outside of training."""
        if self.model.mixes:
            outputs, added = self.outputs(client)
            return self.mixed(outputs), added
        self.apply_cluster()
        output = self._keras(self.model.arrange(_tensors(client.features)), training=False)
        return output, self._keras.losses

    def outputs(self, client: Client) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Returns each cluster's output, and of the losses that it adds its part in the mean."""
        outputs, added, features = [], [], self.model.arrange(_tensors(client.features))
        for cluster in range(self.model.num_clusters):
            self.apply_cluster(cluster)
            outputs.append(self._keras(features, training=False))
            added += [loss / self.model.num_clusters for loss in self._keras.losses]
        return outputs, added

    def mixed(self, outputs: Sequence[tf.Tensor], weights: tf.Tensor | None = None) -> tf.Tensor:
        """Returns the output of a mixture of clusters, weighed as the client does unless given."""
        weights = tf.constant(self._variables[CLUSTER].numpy()) if weights is None else weights
        shares = tf.math.log(tf.unstack(weights / tf.reduce_sum(weights)))
        is_given = are_probabilities(outputs[0])
        if outputs[0].shape[-1] > 1:
            likely = tf.math.log if is_given else tf.nn.log_softmax
            logs = tf.reduce_logsumexp([w + likely(o) for w, o in zip(shares, outputs)], 0)
            return tf.exp(logs) if is_given else logs
        if is_given:
            return tf.add_n([tf.exp(w) * o for w, o in zip(shares, outputs)])
        one, other = (
            tf.reduce_logsumexp(
                [w + tf.math.log_sigmoid(side * o) for w, o in zip(shares, outputs)], 0
            )
            for side in (1.0, -1.0)
        )
        return one - other

    def loss(self, client: Client) -> float:
        """Returns the summed loss of examples, outside of training."""
        model, labels = self.model, tf.constant(client.labels)
        output, more = self._apply(client)
        losses = model.example_losses(labels, output)
        for added in more:
            losses += model.example_weights(labels) * added
        return float(tf.reduce_sum(losses))

    def added_losses(self, client: Client, values: Arrays) -> float:
        """Returns the sum of the losses that the model adds, with some values of its variables."""
        for name, value in values.items():
            self._variables[name].assign(value)
        return float(sum(tf.reduce_sum(loss).numpy() for loss in self._apply(client)[1]))

    def _gradients(self, moving: tuple[str, ...], batch: Client, noise: tf.Tensor):
        """Differentiates the mean loss of a batch, and sums its metrics."""
        arguments = _tensors(batch.features), tf.constant(batch.labels), noise
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
        """Returns what differentiates the mean loss of a batch, and sums its metrics."""
        if moving not in self._steps:
            self._steps[moving] = tf.function(
                lambda *batch: self._differentiate(moving, *batch), reduce_retracing=True
            )
        return self._steps[moving]

    def _mixed_gradients(self, moving, features, labels, noise):
        """Does the same for a mixture of clusters: by outputs, then by each one's values."""
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
            mean, sums = self._judge(
                labels, self.mixed(outputs), [one for of in added for one in of]
            )
        gradients = {k: np.zeros(self._variables[k].shape, np.float32) for k in moving}
        slopes = tape.gradient(mean, [outputs, added])
        for cluster, of_cluster in enumerate(zip(tapes, outputs, added, *slopes)):
            own, output, losses, *upstream = of_cluster
            found = own.gradient(
                [output, *losses],
                {name: self._applied[name] for name in moving},
                output_gradients=[upstream[0], *upstream[1]],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
            for name, gradient in found.items():
                is_own = name in self.model.clustered
                gradients[name][(..., cluster) if is_own else ...] += tf.convert_to_tensor(gradient)
        return {name: tf.constant(value) for name, value in gradients.items()}, sums

    def _give_noise(self, labels, noise):
        if self.model.draws_noise:
            NoiseDraws(fold(noise, tf.range(tf.shape(labels)[0]))).give_to(self._keras)

    def _differentiate(self, moving, features, labels, noise):
        self._give_noise(labels, noise)
        variables = {name: self._applied[name] for name in moving}
        with tf.GradientTape() as tape:
            output = self._keras(self.model.arrange(features), training=True)
            mean, sums = self._judge(labels, output, self._keras.losses)
        gradients = tape.gradient(
            mean, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        return {name: tf.convert_to_tensor(g) for name, g in gradients.items()}, sums

    def _judge(self, labels, output, more):
        """Returns the mean loss of a batch, with added losses, and metric sums."""
        model, weights = self.model, self.model.example_weights(labels)
        losses = model.example_losses(labels, output)
        for added in more:
            losses += weights * added
        mean = tf.math.divide_no_nan(tf.reduce_sum(losses), tf.reduce_sum(weights))
        sums = {"loss": (losses, weights)}
        for metric in model.metrics:
            sums[metric.name] = model.metric_values(metric, labels, output)
        added = {
            name: tf.stack([tf.reduce_sum(tf.cast(t, tf.float32)) for t in pair])
            for name, pair in sums.items()
        }
        added["num_examples"] = tf.cast(tf.shape(labels)[0], tf.float32)
        return mean, added

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
