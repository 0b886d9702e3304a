"""A Keras model as a pure function of its global and its local variables.

A model is split by layer: the variables of the *local* layers never leave a client, all others are
*global* (Singhal et al., Federated Reconstruction, section 3). Those of *frozen* layers, such as a
pretrained language model, are neither: they never move, and reach workers as files. Any Keras model
whose other variables are all trained by gradient can be used; nothing is asked of it but a function
that builds it.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.metrics import Metric

Values = dict[str, tf.Tensor]
ExampleFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """What is known of a variable before it has a value.

    Attributes:
        name: Keras' name of the variable, without the output suffix, such as `item/embeddings`.
        layer: Name of the top-level layer that owns it.
        shape: Its static shape.
        dtype: Its dtype.
        is_local: Whether it stays with its client.
        initializer: Maps an int32 seed of shape (2,) to an initial value, in a graph.
    """

    name: str
    layer: str
    shape: tuple[int, ...]
    dtype: tf.DType
    is_local: bool
    initializer: Callable[[tf.Tensor], tf.Tensor]

    @property
    def size(self) -> int:
        """Number of scalars."""
        return int(np.prod(self.shape, dtype=np.int64))


class PartitionedModel:
    """A Keras model, the names of its local layers, a loss and metrics.

    Attributes:
        variables: Every variable but the frozen ones, in the order in which the model creates them.
        global_variables: The variables that a server broadcasts and aggregates.
        local_variables: The variables that stay with a client.
        frozen: The values of the frozen layers' variables, or None.
        lookups: Layer name to the input whose ids select rows of that layer's only variable.
        unit: What `example_weights` counts.
        sequence_length: Maps features and labels to the lengths of sequences, or None.
        chunk_places: How many places of sequences pooled execution computes at once, or None.
        owned_tables: The lookups of which each row is touched by one client alone.
        input_spec: Input name to `tf.TensorSpec` with a leading, unknown batch dimension.
        label_spec: The labels' `tf.TensorSpec`, likewise.
        metrics: Metrics beside the loss.
    """

    def __init__(
        self,
        build_model: Callable[[], tf.keras.Model],
        *,
        local_layers: Sequence[str] = (),
        frozen_layers: Sequence[str] = (),
        frozen: FrozenVariables | None = None,
        loss: str | tf.keras.losses.Loss | ExampleFn = "mse",
        metrics: Sequence[Metric] = (),
        lookups: Mapping[str, str] | None = None,
        owned_tables: Sequence[str] = (),
        input_spec: Mapping[str, tf.TensorSpec] | None = None,
        label_spec: tf.TensorSpec = tf.TensorSpec([None], tf.float32),
        example_weight: Callable[[tf.Tensor], tf.Tensor] | None = None,
        unit: str = "examples",
        sequence_length: Callable[[Mapping[str, tf.Tensor], tf.Tensor], tf.Tensor] | None = None,
        chunk_places: int | None = None,
    ):
        """Inspects the model that `build_model` returns and splits its variables.

        Args:
            build_model: Returns a new Keras model at each call, always creating the same variables
                in the same order. Its output has one row an example. Values given to the model's
                `add_loss` are added to the loss: a tensor with one value an example, or a scalar.
            local_layers: Names of the layers whose variables are local.
            frozen_layers: Names of the layers whose variables never move.
            frozen: Their values, under the variables' names.
            loss: A Keras loss or its name, or a function of (labels, predictions) that returns one
                float an example.
            metrics: Metrics computed beside the loss.
            lookups: For big embedding tables: layer name to the name of the integer input that the
                layer, and nothing else, looks up. Execution then touches only the rows in use,
                with equal results. The layer has one variable, whose first axis is looked up.
            owned_tables: Names of lookups of which each row belongs to one client (a table of user
                embeddings kept on the server): their updates are summed over clients, not averaged.
            input_spec: Input name to `tf.TensorSpec`, batch dimension first. Only needed for
                subclassed models; others tell it themselves.
            label_spec: The labels' spec, batch dimension first.
            example_weight: Maps labels to float32 (batch,): as how many each example counts in
                the mean loss of a batch, in metrics and in a client's weight. A sentence counts as
                many as it has tokens; `loss` then gives the sum over them. None: each as one.
            unit: The name of what `example_weight` counts, such as `tokens`.
            sequence_length: Maps (features, labels) to int32 (batch,), the length of each example's
                sequence. It declares that padding follows the sequence and that the model ignores
                it: sequences, which are the inputs and labels whose second dimension is None in
                their spec, may then be cut to the longest of a batch.
            chunk_places: How many places of sequences pooled execution computes at once, of 64
                sequences at the most; None for 64 sequences, however long. Attention is busy with a
                few hundred places, and small chunks of sequences of one length leave little to
                pad; a recurrent layer, which takes place by place, is better off with many
                sequences.

        Raises:
            ValueError: If a layer named does not exist or has no variables, a lookup does not fit
                its layer, there are `chunk_places` without lengths of sequences, a frozen variable
                has no value of its shape, or the model has variables that are not trained by
                gradient.
        """
        # A model is built in plain Python, as in a user's own program.
        self._build_model = tf.autograph.experimental.do_not_convert(build_model)
        self.lookups = dict(lookups or {})
        self.owned_tables = frozenset(owned_tables)
        self.label_spec = label_spec
        self.metrics = tuple(metrics)
        self.unit = unit
        self.sequence_length = sequence_length
        self.chunk_places = chunk_places
        if chunk_places is not None and (chunk_places < 1 or sequence_length is None):
            raise ValueError(
                f"chunk_places={chunk_places} must be at least 1, and needs sequence_length, which "
                "tells how many places an example has."
            )
        self._example_weight = example_weight
        self._example_loss = _as_example_fn(loss)
        local_layers = (local_layers,) if isinstance(local_layers, str) else tuple(local_layers)
        frozen_layers = (frozen_layers,) if isinstance(frozen_layers, str) else tuple(frozen_layers)
        self._created, self.input_spec = _inspect(
            build_model, local_layers, frozen_layers, input_spec
        )
        self.frozen = frozen
        self._check_frozen(frozen_layers)
        self.variables = tuple(v for v in self._created if v.layer not in frozen_layers)
        self.global_variables = tuple(v for v in self.variables if not v.is_local)
        self.local_variables = tuple(v for v in self.variables if v.is_local)
        self._check_lookups()

    def _check_frozen(self, frozen_layers: tuple[str, ...]) -> None:
        given = {} if self.frozen is None else self.frozen.shapes
        self._frozen_names = {v.name for v in self._created if v.layer in frozen_layers}
        for variable in self._created:
            if variable.name in self._frozen_names and given.get(variable.name) != variable.shape:
                raise ValueError(
                    f"frozen variable {variable.name!r} of shape {variable.shape} needs a value of "
                    f"that shape; given: {given.get(variable.name, 'none')}."
                )

    def _check_lookups(self) -> None:
        by_layer: dict[str, list[VariableSpec]] = {}
        for variable in self.variables:
            by_layer.setdefault(variable.layer, []).append(variable)
        for layer, feature in self.lookups.items():
            owned = by_layer.get(layer, [])
            if len(owned) != 1:
                raise ValueError(
                    f"lookup layer {layer!r} must own exactly one variable, its table; it owns "
                    f"{[v.name for v in owned]} (layers with variables: {sorted(by_layer)})."
                )
            if feature not in self.input_spec:
                raise ValueError(
                    f"lookup {layer!r} names the input {feature!r}; the model's inputs are "
                    f"{sorted(self.input_spec)}."
                )
        if not self.owned_tables <= set(self.lookups):
            raise ValueError(
                f"owned_tables {sorted(self.owned_tables - set(self.lookups))} are not among the "
                f"lookups {sorted(self.lookups)}."
            )

    @functools.cached_property
    def tables(self) -> dict[str, str]:
        """Variable name of each lookup table to the input whose ids select its rows."""
        return {v.name: self.lookups[v.layer] for v in self.variables if v.layer in self.lookups}

    @functools.cached_property
    def global_tables(self) -> dict[str, str]:
        """Those of `tables` that are broadcast; of the local ones a client holds every row."""
        local = {v.name for v in self.local_variables}
        return {name: feature for name, feature in self.tables.items() if name not in local}

    @functools.cached_property
    def owned(self) -> frozenset:
        """Variable names of the lookup tables of which each row belongs to one client."""
        return frozenset(v.name for v in self.variables if v.layer in self.owned_tables)

    def initial_values(self, variables: Sequence[VariableSpec], seed: tf.Tensor) -> Values:
        """Draws initial values with the layers' own initializers; needs a graph.

        Args:
            variables: Some of this model's variables.
            seed: int32 tensor of shape (2,); equal seeds give equal values.

        Returns:
            Variable name to value.
        """
        return {
            v.name: v.initializer(tf.stack([seed[0], seed[1] + 7919 * i]))
            for i, v in enumerate(variables)
        }

    def initial_global_values(self, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns initial values of the global variables, variable name to array."""
        draw = tf.function(lambda s: self.initial_values(self.global_variables, s))
        return {k: v.numpy() for k, v in draw(tf.constant([seed, 0], tf.int32)).items()}

    def predict(
        self, values: Mapping[str, tf.Tensor], features: Mapping[str, tf.Tensor], *, training: bool
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Applies the model with the given values in place of its variables; needs a graph.

        Args:
            values: Variable name to value, for all `variables`. A lookup table may be given with
                fewer rows, when the ids in `features` select among those.
            features: Input name to tensor, batch dimension first.
            training: Keras' training flag.

        Returns:
            The model's output, and the losses that it adds (one value an example, or scalars).
        """
        remaining = [
            self.frozen.tensor(v.name) if v.name in self._frozen_names else values[v.name]
            for v in self._created
        ]

        def give_value(_, **kwargs):
            del kwargs
            if not remaining:
                raise ValueError(
                    "build_model created more variables than at its first call; it must create "
                    f"the same ones each time: {[v.name for v in self._created]}."
                )
            return remaining.pop(0)

        # Keras reads a variable by using it as a tensor, so a tensor can stand in its place.
        with tf.variable_creator_scope(give_value):
            model = self._build_model()
            output = _autographed_call()(model, dict(features), training)
        return output, list(model.losses)

    def example_losses(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 (batch,), without what the model adds."""
        return self._example_loss(labels, self.as_labels(predictions))

    def example_weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns as how many each example counts, float32 (batch,)."""
        if self._example_weight is None:
            return tf.ones(tf.shape(labels)[:1])
        return tf.cast(self._example_weight(labels), tf.float32)

    def as_labels(self, predictions: tf.Tensor) -> tf.Tensor:
        """Drops a last axis of one that labels lack: Keras models often end in Dense(1)."""
        if predictions.shape.rank == self.label_spec.shape.rank + 1 and predictions.shape[-1] == 1:
            return tf.squeeze(predictions, -1)
        return predictions


def _call(model: tf.keras.Model, features: Mapping[str, tf.Tensor], training: bool) -> tf.Tensor:
    return model(features, training=training)


@functools.cache
def _autographed_call() -> Callable[..., tf.Tensor]:
    """Returns `_call` for graphs without AutoGraph: a model may branch on tensors, as in Keras."""
    return tf.autograph.to_graph(_call)


def _as_example_fn(loss: Any) -> ExampleFn:
    """Makes a loss return one float an example, whatever form it was given in."""
    loss = tf.keras.losses.get(loss)
    call = loss.call if isinstance(loss, tf.keras.losses.Loss) else loss

    def example_losses(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        if predictions.shape.rank == 1:
            # Keras averages over the last axis, which must not be the batch.
            labels, predictions = labels[:, tf.newaxis], predictions[:, tf.newaxis]
        losses = call(labels, predictions)
        if losses.shape.rank and losses.shape.rank > 1:
            losses = tf.reduce_mean(losses, axis=list(range(1, losses.shape.rank)))
        return losses

    return example_losses


class _SeededDraws:
    """Stands in for the random generator inside a Keras initializer; draws from a tensor seed."""

    def __init__(self, seed: tf.Tensor):
        self._seed = seed

    def random_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_normal(shape, self._seed, mean, stddev, dtype)

    def random_uniform(self, shape, minval=0.0, maxval=None, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_uniform(shape, self._seed, minval, maxval, dtype)

    def truncated_normal(self, shape, mean=0.0, stddev=1.0, dtype=tf.float32, nonce=None):
        del nonce
        return tf.random.stateless_truncated_normal(shape, self._seed, mean, stddev, dtype)


def _seeded(initial_value: Any, shape: tuple[int, ...], dtype: tf.DType):
    """Turns what Keras gives a new variable as its value into a function of a seed."""
    initializer = getattr(initial_value, "func", None)

    def draw(seed: tf.Tensor) -> tf.Tensor:
        if hasattr(initializer, "_random_generator"):
            seeded = copy.copy(initializer)
            seeded._random_generator = _SeededDraws(seed)
            seeded._used = False  # Else Keras warns of equal values, which the seed sees to.
            value = seeded(shape, dtype=dtype)
        else:
            value = initial_value() if callable(initial_value) else initial_value
        return tf.ensure_shape(tf.cast(value, dtype), shape)

    return draw


def _inspect(
    build_model: Callable[[], tf.keras.Model],
    local_layers: tuple[str, ...],
    frozen_layers: tuple[str, ...],
    input_spec: Mapping[str, tf.TensorSpec] | None,
) -> tuple[tuple[VariableSpec, ...], dict[str, tf.TensorSpec]]:
    """Builds the model once, in a graph of its own, and lists its variables and inputs."""
    created: list[tuple[tf.Variable, Any]] = []

    def record(next_creator, **kwargs):
        variable = next_creator(**kwargs)
        created.append((variable, kwargs.get("initial_value")))
        return variable

    with tf.Graph().as_default(), tf.variable_creator_scope(record), warnings.catch_warnings():
        # Initializers that two layers share draw from seeds of their own.
        warnings.filterwarnings("ignore", message="The initializer .* is unseeded")
        model = build_model()
        if not isinstance(model, tf.keras.Model):
            raise ValueError(f"build_model must return a tf.keras.Model, it returned {model!r}.")
        if input_spec is None:
            if not getattr(model, "inputs", None):
                raise ValueError(
                    f"{model.name!r} does not tell its inputs: give input_spec, a mapping of input "
                    "name to tf.TensorSpec with the batch dimension first."
                )
            input_spec = {
                name: tf.TensorSpec(t.shape, t.dtype)
                for name, t in zip(model.input_names, model.inputs)
            }
        model({k: tf.compat.v1.placeholder(s.dtype, s.shape) for k, s in input_spec.items()})
        owners = {v.ref(): layer.name for layer in model.layers for v in layer.variables}
        layer_names = [layer.name for layer in model.layers]
        untrained = [
            v.name
            for v in model.non_trainable_variables
            if owners.get(v.ref()) not in frozen_layers
        ]
    if untrained:
        raise ValueError(
            f"variables {untrained} are not trained by gradient (batch normalisation, or a layer "
            "that is not named in frozen_layers); use layers whose variables all are, such as "
            "GroupNormalization."
        )
    for kind, names in (("local", local_layers), ("frozen", frozen_layers)):
        for name in names:
            if name not in layer_names:
                raise ValueError(
                    f"{kind} layer {name!r} is not among the model's layers {layer_names}."
                )
            if name not in owners.values():
                raise ValueError(f"{kind} layer {name!r} has no variables.")
    both = sorted(set(local_layers) & set(frozen_layers))
    if both:
        raise ValueError(f"layer {both[0]!r} is named local and frozen; it can be one of them.")
    variables = []
    for variable, initial_value in created:
        layer = owners.get(variable.ref(), model.name)
        shape, dtype = tuple(variable.shape), variable.dtype.base_dtype
        variables.append(
            VariableSpec(
                name=variable.name.split(":")[0],
                layer=layer,
                shape=shape,
                dtype=dtype,
                is_local=layer in local_layers,
                initializer=_seeded(initial_value, shape, dtype),
            )
        )
    names = [v.name for v in variables]
    if len(set(names)) != len(names):
        raise ValueError(f"two variables share a name; name their layers apart: {names}.")
    return tuple(variables), dict(input_spec)
