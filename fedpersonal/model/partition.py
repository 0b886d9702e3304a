"""A Keras model as a pure function of its global and its local variables.

A model is split by layer or by variable: *local* variables stay with a client, all others are
*global* (Singhal et al., Federated Reconstruction, section 3). *Frozen* ones, such as those of a
pretrained language model, are neither: they never move, and are read from files. Any Keras model
whose other variables are all trained by gradient can be used; nothing is asked of it but a function
that builds it.
"""

from __future__ import annotations

import dataclasses
import functools
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph
from tensorflow.python.ops.resource_variable_ops import ResourceVariable

from fedpersonal.errors import UserError, kind_of, named_arguments
from fedpersonal.model.compiled import choose_loss_and_metrics, recorded_compile, take_apart
from fedpersonal.model.frozen import FrozenVariables
from fedpersonal.model.given import GivenVariable
from fedpersonal.model.inspection import (
    MOST_READ,
    InputSpec,
    ModelBuilder,
    ModelInputs,
    arrange_inputs,
    check_is_numbers,
    inspect_model,
)
from fedpersonal.model.keras import (
    drop_mask,
    freeze,
    keras,
    label_range,
    map_logits,
    notes_of,
    takes_class_ids,
    with_notes,
)
from fedpersonal.model.lookups import skip_lookups
from fedpersonal.model.metrics import (
    ExampleFn,
    ExampleLoss,
    KerasMetric,
    Loss,
    Metric,
    Metrics,
    as_metrics,
)
from fedpersonal.model.noise import NoiseDraws, fold
from fedpersonal.model.unsupported import check_functions
from fedpersonal.model.variables import (
    VariableSpec,
    check_names,
    creation_key,
    split_variables,
    start_of,
)
from fedpersonal.runtime.context import check_not_forked

Values = dict[str, tf.Tensor]
# What follows from the variables, and is not taken over by a model around another.
_DERIVED = ("tables", "global_tables", "owned", "_draws")


class PartitionedModel:
    """A Keras model, the names of its local layers, a loss and metrics.

    Attributes:
        variables: Every variable but the frozen ones, in the order in which the model creates them.
        global_variables: The variables that a server broadcasts and aggregates.
        local_variables: The variables that stay with a client.
        all_variables: Every variable, the frozen ones too, in that order.
        frozen: The frozen variables' values.
        input_spec: Input name to `tf.TensorSpec` with a leading, unknown batch dimension.
        metrics: Metrics beside the loss.
        given_loss: The loss as it was given, or compiled.
        given_metrics: The metrics as they were given, or compiled.
        given_builder: What builds the Keras model.
        draws_noise: Whether layers such as Dropout draw random numbers in training.
        label_range: The least and the largest label that the loss takes, or None for any.
        masks_output: Whether loss and metrics are of places that Keras' mask leaves.
        has_mean_loss: Whether the loss is a mean over examples: it has no mask, nor a reduction or
            a `__call__` of its own.
        takes_class_ids: Whether the loss takes the numbers of classes for labels.
        input_checks: What finds values of its inputs that the model cannot take.
        copies: Name of each local variable that is a client's copy of a global one, to that one's.
        own_rows: Name of each copy that has a single row, of a table of which each row belongs to
            one client, to the input that tells whose.
        server_states: Name of each state that the server has of a global variable, and sends, to
            that one's.
        blends: Name of each local variable that says how far a copy goes towards what was sent, to
            the copy's.
        role: What copies are for, as of `PersonalCopies`.
        num_clusters: How many values each of some global variables has, of which a client chooses
            one, or weighs all; 0 for none.
        clustered: The names of these variables.
        mixes: Whether a client mixes what the model predicts with each of them.

    Examples:
        >>> layers = [tf.keras.Input([2], name="x"), tf.keras.layers.Dense(4, name="body")]
        >>> keras_model = tf.keras.Sequential([*layers, tf.keras.layers.Dense(1, name="head")])
        >>> model = fp.PartitionedModel(keras_model, local_layers=["head"], loss="mse")
        >>> [variable.name for variable in model.local_variables]
        ['head/kernel', 'head/bias']
        >>> model
        <PartitionedModel: 12 global (body/kernel, body/bias), 5 local (head/kernel, head/bias)>
    """

    copies: Mapping[str, str] = types.MappingProxyType({})
    own_rows: Mapping[str, str] = types.MappingProxyType({})
    server_states: Mapping[str, str] = types.MappingProxyType({})
    blends: Mapping[str, str] = types.MappingProxyType({})
    role: str = "model"
    num_clusters: int = 0
    clustered: frozenset[str] = frozenset()
    mixes: bool = False
    _base: PartitionedModel | None = None

    @named_arguments
    def __init__(
        self,
        build_model: ModelBuilder | keras.Model,
        *,
        local_layers: Sequence[str] = (),
        frozen_layers: Sequence[str] = (),
        frozen: FrozenVariables | None = None,
        loss: Loss | None = None,
        metrics: Metrics | None = None,
        lookups: Mapping[str, str] | None = None,
        owned_tables: Sequence[str] = (),
        input_spec: InputSpec | None = None,
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
                Or a model that Keras can clone, a Sequential or a functional one: its weights
                are then the initial values.
            local_layers: What is local: names of top-level layers, of nested ones by their path
                (`encoder/head`), or of single variables (`dense/bias`).
            frozen_layers: What never moves, by such names. The more specific name counts.
            frozen: Their values, under the variables' names. None for those of the model itself,
                where it is a built one; they are then in a temporary folder of this machine.
            loss: A Keras loss or its name, or a function of (labels, predictions), shaped as in
                Keras' fit, that returns one float an example, or one of the batch; it may compare
                a client's examples. What Keras computes for a batch, with the output's mask and
                the loss' reduction, is computed for each client's batch. None for what the model
                was compiled with, or else `mse`.
            metrics: Metrics computed beside the loss: `Metric`s, or Keras metrics or their names
                that are means over examples. None for what the model was compiled with.
            lookups: For big embedding tables: layer name to the name of the integer input that the
                layer, and nothing else, looks up. Execution then touches only the rows in use,
                with equal results. The layer has one variable, whose first axis is looked up.
            owned_tables: Names of lookups of which each row belongs to one client (a table of user
                embeddings kept on the server): their updates are summed over clients, not averaged.
            input_spec: Input name to `tf.TensorSpec`, batch dimension first; one alone for a model
                that is called with a tensor. Only needed for models that do not tell it
                themselves: subclassed ones, and a Sequential without an input shape.
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
                sequences at the most; None for 64 sequences, however long, or, where labels are no
                sequences, 256 of 16,384 places at the most. That suits recurrent layers. Attention
                is busy with a few hundred places, and pads less.

        Raises:
            UserError: If a name chooses no variable, or the model, its lookups, frozen values or
                metrics are not as said above.
        """
        check_not_forked()
        if not callable(build_model):
            raise UserError(
                "build_model must be a function that returns a new Keras model at each call, or a "
                f"built Keras model, not {kind_of(build_model)}."
            )
        check_is_numbers("label_spec", label_spec)
        ready = take_apart(build_model) if isinstance(build_model, keras.Model) else None
        if ready is not None:
            build_model = ready.build_model
        # A model is built in plain Python, as in a user's own program. With AutoGraph off, its
        # layers could not branch on tensors, and Keras would lose the arguments of operations.
        builder = autograph.call_with_unspecified_conversion_status(build_model)
        self.lookups = dict(lookups or {})
        self.owned_tables = frozenset(owned_tables)
        self.label_spec = label_spec
        self.unit = unit
        self.sequence_length = sequence_length
        self.chunk_places = chunk_places
        if chunk_places is not None and (chunk_places < 1 or sequence_length is None):
            raise UserError(
                f"chunk_places={chunk_places} must be at least 1, and needs sequence_length, which "
                "tells how many places an example has."
            )
        if ready is not None:
            ready = ready._replace(build_model=builder)
        found, self._build_model = inspect_model(builder, input_spec, ready)
        self.input_spec, self._takes = found.input_spec, found.takes
        self.draws_noise, self.input_checks = found.draws_noise, found.input_checks
        self.example_weight = example_weight
        compiled = found.compiled if ready is None else ready.compiled or found.compiled
        loss, metrics = choose_loss_and_metrics(loss, metrics, compiled)
        self.given_loss, self.given_metrics, self.given_builder = loss, metrics, build_model
        example_loss = ExampleLoss(loss)
        self._example_loss: ExampleFn = example_loss
        shape = found.output_spec.shape
        num_outputs = shape[-1] if shape.rank else None
        self._has_unit_axis = num_outputs == 1 and shape.rank == label_spec.shape.rank + 1
        # What examples weigh says which places count.
        self.masks_output = found.is_masked and example_weight is None
        self.has_mean_loss = example_loss.is_mean and not self.masks_output
        if example_weight is not None and not example_loss.is_mean:
            raise UserError(
                "with example_weight, the loss must return one float an example, the sum over what "
                f"the example counts as; {loss!r} has a value for a batch alone."
            )
        self.label_range = label_range(loss, num_outputs)
        self.takes_class_ids = takes_class_ids(loss)
        self.metrics = as_metrics(metrics, are_weighted=example_weight is not None)
        if ready is not None:
            functions: dict[str, Callable[..., Any]] = {"the loss": self.example_losses}
            for metric in self.metrics:
                functions[f"metric {metric.name!r}"] = functools.partial(self.metric_values, metric)
            check_functions(functions, (label_spec, found.output_spec), ready.weights)
        layers = (local_layers, frozen_layers)
        local, frozen_names = ((n,) if isinstance(n, str) else tuple(n) for n in layers)
        variables = split_variables(found.variables, local, frozen_names)
        self._creation_keys, self._assigns = found.keys, found.assigns
        self._untrained = found.untrained
        # Layers that have been adapted, or are not to be trained, keep what they start from.
        untrained = found.untrained - found.updated
        fixed = [v for v in variables if v.name in untrained and not v.is_frozen]
        starts = {v.name: start_of(v, found.values) for v in fixed}
        still = {name: value for name, value in starts.items() if value is not None}
        self.all_variables = tuple(
            dataclasses.replace(v, is_local=False, is_frozen=True) if v.name in still else v
            for v in variables
        )
        if frozen is None:
            names = [v.name for v in self.all_variables if v.is_frozen]
            known = {**found.values, **still}
            frozen = FrozenVariables.of({n: known[n] for n in names if n in known})
        else:
            frozen = FrozenVariables.of(
                {name: value for name, value in still.items() if name not in frozen.paths}
            ).followed_by(frozen)
        self.frozen = frozen
        moving = {n for v in self.all_variables if not v.is_frozen for n in v.names}
        self._frozen_paths = {n for v in self.all_variables for n in v.names} - moving
        self._check_frozen(found.untrained)
        self.variables = tuple(v for v in self.all_variables if not v.is_frozen)
        self.global_variables = tuple(v for v in self.variables if not v.is_local)
        self.local_variables = tuple(v for v in self.variables if v.is_local)
        self._check_lookups()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe_variables()}>"

    def describe_variables(self) -> str:
        """Returns how many numbers of each kind there are, and the first variables' names."""
        frozen = [v for v in self.all_variables if v.is_frozen]
        kinds = {
            "global": self.global_variables, "local": self.local_variables, "frozen": frozen
        }  # fmt: skip
        said = []
        for kind, variables in kinds.items():
            names = ", ".join(v.name for v in variables[:4]) + ", ..." * (len(variables) > 4)
            if variables:
                said.append(f"{sum(v.size for v in variables):,} {kind} ({names})")
        return ", ".join(said)

    def _take_over(self, base: PartitionedModel) -> None:
        """Becomes a model around another, which has the same layers and data."""
        self.__dict__.update({k: v for k, v in vars(base).items() if k not in _DERIVED})
        self._base = base

    def _check_frozen(self, untrained: frozenset[str]) -> None:
        moving = [v.name for v in self.all_variables if v.name in untrained and not v.is_frozen]
        if moving:
            raise UserError(
                f"variables {moving} are not trained by gradient (batch normalisation, or a layer "
                "that is not named in frozen_layers); use layers whose variables all are, such as "
                "GroupNormalization, or name theirs in frozen_layers."
            )
        for variable in self.all_variables:
            given = self.frozen.shapes.get(variable.name)
            if variable.is_frozen and given != variable.shape:
                raise UserError(
                    f"frozen variable {variable.name!r} of shape {variable.shape} needs a value of "
                    f"that shape; given: {given or 'none'}. Give a built Keras model, whose values "
                    "are taken, or frozen=."
                )

    def _check_lookups(self) -> None:
        check_names("lookups", self.lookups, self.variables)
        for layer, feature in self.lookups.items():
            owned = [v.name for v in self.variables if layer in v.names]
            if len(owned) != 1:
                raise UserError(
                    f"lookup layer {layer!r} must own exactly one variable, its table; it owns "
                    f"{owned}."
                )
            (table,) = (v for v in self.variables if v.name == owned[0])
            if table.constraint is not None:
                raise UserError(
                    f"lookup layer {layer!r} has a constraint, which Keras applies to all rows of "
                    "its table in each step: leave the layer out of lookups, or the constraint."
                )
            if feature not in self.input_spec:
                raise UserError(
                    f"lookup {layer!r} names the input {feature!r}; the model's inputs are "
                    f"{sorted(self.input_spec)}."
                )
        if not self.owned_tables <= set(self.lookups):
            raise UserError(
                f"owned_tables {sorted(self.owned_tables - set(self.lookups))} are not among the "
                f"lookups {sorted(self.lookups)}."
            )

    @functools.cached_property
    def tables(self) -> dict[str, str]:
        """Variable name of each lookup table to the input whose ids select its rows."""
        named = {v.name: v.first_name(self.lookups) for v in self.variables}
        return {name: self.lookups[layer] for name, layer in named.items() if layer is not None}

    @functools.cached_property
    def global_tables(self) -> dict[str, str]:
        """Those of `tables` of which clients send the rows that they touch.

        Of a local one, and of the copy that is sent in a global one's place, a client has all rows.
        """
        whole = {v.name for v in self.variables if v.is_local or v.is_replaced}
        return {name: feature for name, feature in self.tables.items() if name not in whole}

    @property
    def packed_tables(self) -> Mapping[str, str]:
        """Those of `tables` of which packing finds the rows that each client touches."""
        return self.base.global_tables

    @functools.cached_property
    def owned(self) -> frozenset[str]:
        """Variable names of the lookup tables of which each row belongs to one client."""
        return frozenset(v.name for v in self.variables if v.first_name(self.owned_tables))

    @property
    def drawn_variables(self) -> tuple[VariableSpec, ...]:
        """The local variables that start at a draw: all but the copies."""
        return tuple(v for v in self.local_variables if v.name not in self.copies)

    @property
    def base(self) -> PartitionedModel:
        """The model without personal copies, or clusters."""
        return self if self._base is None else self._base

    @property
    def personal(self) -> PartitionedModel:
        """The model as a client predicts: with its personal copies, where it has some."""
        return self

    def applied(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Returns values with those that the Keras model is applied with, under its names."""
        return values

    @property
    def unread(self) -> Collection[str]:
        """Names of local variables that `applied` does not read."""
        return ()

    def copied(self, value: Any) -> Any:
        """Returns what a copy starts at, an array or a tensor like the value that was sent."""
        return value

    def bounded(self, values: Values) -> Values:
        """Returns some variables' values, (C, ...), after a step, held in their range."""
        return values

    def build(self) -> keras.Model:
        """Returns a new Keras model, whose variables are its own."""
        model = self._build_model()
        freeze(model, self._frozen_paths)
        return model

    def arrange(self, features: Mapping[str, tf.Tensor]) -> ModelInputs:
        """Returns features by input name in the structure with which the model is called."""
        return arrange_inputs(features, self.input_spec, self._takes)

    def initial_values(self, variables: Sequence[VariableSpec], seed: tf.Tensor) -> Values:
        """Draws initial values with the layers' own initializers, by name; needs a graph.

        `seed` is int32 of shape (2,), or (n, 2) for n values each; equal seeds give equal values.
        """
        return {v.name: v.initializer(seed + [0, 7919 * i]) for i, v in enumerate(variables)}

    def initial_global_values(self, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns initial values of the global variables, variable name to array."""
        return self._draw(self.global_variables, [seed, 0])

    def initial_local_values(self, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns drawn values of the local variables of a client without examples."""
        return self._draw(self.drawn_variables, [seed, -1])

    def _draw(self, variables: Sequence[VariableSpec], seed: Sequence[int]) -> dict:
        names = tuple(v.name for v in variables)
        if names not in self._draws:  # Each would be traced again, of which TensorFlow warns.
            draw = functools.partial(self.initial_values, variables)
            self._draws[names] = tf.function(draw, autograph=False)
        drawn = self._draws[names](tf.constant(seed, tf.int32))
        return {k: v.numpy() for k, v in drawn.items()}

    @functools.cached_property
    def _draws(self) -> dict[tuple[str, ...], Callable[[tf.Tensor], Values]]:
        """What draws the initial values of some variables, by their names."""
        return {}

    def predict(
        self,
        values: Mapping[str, tf.Tensor],
        features: Mapping[str, tf.Tensor],
        *,
        training: bool,
        noise: tf.Tensor | None = None,
        rows_in_order: bool = False,
    ) -> tuple[tf.Tensor, list[tf.Tensor]]:
        """Applies the model with the given values in place of its variables; needs a graph.

        Args:
            values: Variable name to value, for all `variables`. A lookup table may be given with
                fewer rows, when the ids in `features` select among those.
            features: Input name to tensor, batch dimension first.
            training: Keras' training flag.
            noise: uint64 (batch,): each example's seed of what layers such as Dropout draw; None
                for seeds that are always the same.
            rows_in_order: Whether lookup tables have a row for each id, and ids count from 0.

        Returns:
            The model's output, and the losses that it adds (one value an example, or scalars).
        """
        values = self.applied(values)
        given = [
            self._frozen_value(v) if v.is_frozen else values[v.name] for v in self.all_variables
        ]
        remaining = list(zip(self._creation_keys, given))

        def give_value(_, **kwargs):
            if remaining and creation_key(kwargs) == remaining[0][0]:
                value = remaining.pop(0)[1]
                # A constant has no name, which a layer with a regularizer reads.
                if not self._assigns and not isinstance(value, tf.__internal__.EagerTensor):
                    return value
                known = {name: kwargs.get(name) for name in ("name", "trainable", "constraint")}
                return GivenVariable(initial_value=value, **known)
            if kwargs.get("trainable") is not False and kwargs.get("dtype") != "int64":
                raise UserError(
                    "build_model created more variables than at its first call, or others; it "
                    f"must create the same ones each time: {[v.name for v in self.all_variables]}."
                )
            value = kwargs["initial_value"]
            if kwargs.get("name") == "StateVar":  # Of a generator that Keras builds layers with.
                with tf.init_scope():
                    return ResourceVariable(value, trainable=False, dtype=kwargs.get("dtype"))
            # An optimizer's or a Keras metric's, of no use here.
            return tf.convert_to_tensor(value() if callable(value) else value)

        # Keras reads a variable by using it as a tensor, so a tensor can stand in its place.
        with tf.variable_creator_scope(give_value), recorded_compile():
            model = self.build()
            if self.draws_noise:
                if noise is None:
                    batch = tf.shape(next(iter(features.values())))[0]
                    noise = fold(tf.zeros([], tf.uint64), tf.range(batch))
                NoiseDraws(noise).give_to(model)
            if rows_in_order:
                skip_lookups(model, self.base.lookups)
            # In graphs without AutoGraph, too, a model may branch on tensors, as in Keras.
            with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
                output = model(self.arrange(features), training=training)
        losses = list(model.losses)
        return output if self.masks_output else drop_mask(output), losses

    def _frozen_value(self, variable: VariableSpec) -> tf.Tensor:
        if variable.name not in self._untrained or variable.size > MOST_READ:
            return self.frozen.tensor(variable.name)
        with tf.init_scope():  # Where layers are built, which may read what they have learned.
            return tf.constant(self.frozen.array(variable.name))

    def example_losses(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 (batch,), without what the model adds.

        Its mean over a batch is Keras' loss of the batch. Where that depends on the batch as a
        whole, the examples must be all of one client's batch, and each has the loss of the batch.
        """
        return self._example_loss(labels, self.as_output(predictions))

    def metric_values(
        self, metric: Metric, labels: tf.Tensor, predictions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a metric's value and weight of each example, float32 (batch,)."""
        shape = self.as_output if isinstance(metric, KerasMetric) else self.as_labels
        return metric.weigh(labels, shape(predictions), self.example_weights(labels))

    def example_weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns as how many each example counts, float32 (batch,)."""
        if self.example_weight is None:
            return tf.ones(tf.shape(labels)[:1])
        return tf.cast(self.example_weight(labels), tf.float32)

    def as_labels(self, predictions: tf.Tensor) -> tf.Tensor:
        """Drops a last axis of one that labels lack: Keras models often end in Dense(1)."""
        if predictions.shape.rank == self.label_spec.shape.rank + 1 and predictions.shape[-1] == 1:
            notes = map_logits(notes_of(predictions), lambda t: tf.squeeze(t, -1))
            return with_notes(tf.squeeze(predictions, -1), notes)
        return predictions

    def as_output(self, predictions: tf.Tensor) -> tf.Tensor:
        """Returns predictions as Keras' losses take them.

        They have the axis that `as_labels` may have dropped, and a mask only where it counts.
        """
        if self._has_unit_axis and predictions.shape.rank == self.label_spec.shape.rank:
            notes = map_logits(notes_of(predictions), lambda t: t[..., tf.newaxis])
            predictions = with_notes(predictions[..., tf.newaxis], notes)
        return predictions if self.masks_output else drop_mask(predictions)
