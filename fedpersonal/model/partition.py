"""A Keras model as a pure function of its global and its local variables.

A model is split by layer or by variable: *local* variables stay with a client, all others are
*global* (Singhal et al., Federated Reconstruction, section 3). *Frozen* ones, such as those of a
pretrained language model, are neither: they never change, and are read from files. Any Keras model
whose other variables are all trained by gradient is supported; only a function that builds it is
required.
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

from fedpersonal import former
from fedpersonal.errors import UserError, named_arguments, type_name
from fedpersonal.model.compiled import choose_loss_and_metrics, prepare_copies, recorded_compile
from fedpersonal.model.frozen import FrozenVariables
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
    freeze_layers,
    keras,
    label_range,
    map_logits,
    notes_of,
    skip_lookups,
    takes_class_ids,
    with_notes,
)
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
from fedpersonal.model.stand_in import StandInVariable
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
# Attributes derived from the variables, which a model around another computes itself.
_DERIVED = ("tables", "global_tables", "server_rows_per_client", "_samplers")


class PartitionedModel:
    """A Keras model, the names of its local layers, a loss and metrics.

    Attributes:
        variables: Every variable but the frozen ones, in the order in which the model creates them.
        global_variables: The variables that a server broadcasts and aggregates.
        local_variables: The variables that stay with a client.
        all_variables: Every variable, the frozen ones too, in that order.
        frozen: The frozen variables' values.
        input_spec: Input name to `tf.TensorSpec` with a leading, unknown batch dimension.
        metrics: Metrics in addition to the loss.
        given_loss: The loss as the user gave it, or as compiled.
        given_metrics: The metrics as the user gave them, or as compiled.
        given_builder: The function that builds the Keras model.
        draws_noise: Whether layers such as Dropout use random numbers in training.
        label_range: The least and the largest label that the loss takes, or None for any.
        masks_output: Whether loss and metrics only count places that Keras' mask keeps.
        has_mean_loss: Whether the loss is a mean over examples: it has no mask, and no custom
            reduction or `__call__`.
        takes_class_ids: Whether the loss takes ids of classes as labels.
        input_checks: Checks for input values that the model cannot take.
        copies: Name of each client's personal copy of a global variable, to that variable's name.
        per_client_rows: Name of each copy that has a single row, since each row of its table
            belongs to one client, to the input whose value is the client's row.
        server_states: Name of each state that the server has for a global variable, and sends, to
            that variable's name.
        blends: Name of each local variable that controls how far a copy moves towards the value
            sent, to the copy's name.
        role: The role of copies, as in `PersonalCopies`.
        num_clusters: Number of values that each clustered variable has. A client chooses one, or
            weighs all; 0 without clusters.
        clustered: The names of the clustered variables.
        mixes: Whether a client mixes the predictions with each of these values.

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
    per_client_rows: Mapping[str, str] = types.MappingProxyType({})
    server_states: Mapping[str, str] = types.MappingProxyType({})
    blends: Mapping[str, str] = types.MappingProxyType({})
    role: str = "model"
    num_clusters: int = 0
    clustered: frozenset[str] = frozenset()
    mixes: bool = False
    _base: PartitionedModel | None = None

    @former.renamed_arguments(owned_tables="per_client_tables")
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
        per_client_tables: Sequence[str] = (),
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
                in the same order. Its output has one row per example. Values passed to the model's
                `add_loss` are added to the loss: a tensor with one value per example, or a scalar.
                Alternatively, a model that Keras can clone, Sequential or functional: its weights
                are then the initial values.
            local_layers: Names of the layers that stay with each client: top-level layers, nested
                ones by their path (`encoder/head`), or single variables (`dense/bias`).
            frozen_layers: Names of the layers that never change. If names of both lists choose a
                variable, the more specific name counts.
            frozen: Values of the frozen variables, under their names. None for those of a built
                model; they are then stored in a temporary folder of this machine.
            loss: A Keras loss or its name, or a function of (labels, predictions), shaped as in
                Keras' fit, that returns one float per example, or one for the batch; it may compare
                a client's examples. It is computed for each client's batch as Keras computes it
                for a batch, with the output's mask and the loss' reduction. None for the loss that
                the model was compiled with, or else `mse`.
            metrics: Metrics in addition to the loss: `Metric`s, or Keras metrics or their names
                that are means over examples. None for those that the model was compiled with.
            lookups: For big embedding tables: layer name to the name of the integer input that the
                layer, and nothing else, looks up. Execution then touches only the rows in use,
                with equal results. The layer has one variable, whose first axis is looked up.
            per_client_tables: Names of lookups of which each row belongs to one client (a table of
                user embeddings that the server keeps). Their updates are summed over clients, not
                averaged.
            input_spec: Input name to `tf.TensorSpec`, batch dimension first; a single one for a
                model that is called with a tensor. Only required for models that do not declare
                their inputs: subclassed ones, and a Sequential without an input shape.
            label_spec: The labels' spec, batch dimension first.
            example_weight: Maps labels to float32 (batch,), the weight of each example in the mean
                loss of a batch, in metrics and in a client's weight. For a sentence it may be the
                number of tokens; `loss` then returns the sum over them. None for weights of 1.
            unit: The unit that `example_weight` counts, such as `tokens`.
            sequence_length: Maps (features, labels) to int32 (batch,), the length of each example's
                sequence. It declares that padding follows the sequence and that the model ignores
                padding. Sequences are the inputs and labels whose second dimension is None in their
                spec; they may then be cut to the longest of a batch.
            chunk_places: Number of places of sequences that pooled execution computes at once, in
                at most 64 sequences. None for 64 sequences of any length, or, if labels are no
                sequences, 256 sequences of at most 16,384 places. This default is for recurrent
                layers. Attention is efficient with a few hundred places, which need less padding.

        Raises:
            UserError: If a name chooses no variable, or the model, its lookups, frozen values or
                metrics do not fulfil the requirements above.
        """
        check_not_forked()
        if not callable(build_model):
            raise UserError(
                "build_model must be a function that returns a new Keras model at each call, or a "
                f"built Keras model, not {type_name(build_model)}."
            )
        check_is_numbers("label_spec", label_spec)
        ready = prepare_copies(build_model) if isinstance(build_model, keras.Model) else None
        if ready is not None:
            build_model = ready.build_model
        # A model is built in plain Python, as in a user's program. Without AutoGraph, its layers
        # could not branch on tensors, and Keras would lose the arguments of operations.
        builder = autograph.call_with_unspecified_conversion_status(build_model)
        self.lookups = dict(lookups or {})
        self.per_client_tables = frozenset(per_client_tables)
        self.label_spec = label_spec
        self.unit = unit
        self.sequence_length = sequence_length
        self.chunk_places = chunk_places
        if chunk_places is not None and (chunk_places < 1 or sequence_length is None):
            raise UserError(
                f"chunk_places={chunk_places} must be at least 1, and needs sequence_length, the "
                "number of places of an example."
            )
        if ready is not None:
            ready = ready._replace(build_model=builder)
        inspection, self._build_model = inspect_model(builder, input_spec, ready)
        self.input_spec, self._takes = inspection.input_spec, inspection.takes
        self.draws_noise, self.input_checks = inspection.draws_noise, inspection.input_checks
        self.example_weight = example_weight
        compiled = inspection.compiled if ready is None else ready.compiled or inspection.compiled
        loss, metrics = choose_loss_and_metrics(loss, metrics, compiled)
        self.given_loss, self.given_metrics, self.given_builder = loss, metrics, build_model
        example_loss = ExampleLoss(loss)
        self._example_loss: ExampleFn = example_loss
        shape = inspection.output_spec.shape
        num_outputs = shape[-1] if shape.rank else None
        self._has_unit_axis = num_outputs == 1 and shape.rank == label_spec.shape.rank + 1
        # With example_weight, the weights determine which places count.
        self.masks_output = inspection.is_masked and example_weight is None
        self.has_mean_loss = example_loss.is_mean and not self.masks_output
        if example_weight is not None and not example_loss.is_mean:
            raise UserError(
                "with example_weight, the loss must return one float per example, the sum over "
                f"what example_weight counts; {loss!r} only has a value for a batch."
            )
        self.label_range = label_range(loss, num_outputs)
        self.takes_class_ids = takes_class_ids(loss)
        self.metrics = as_metrics(metrics, are_weighted=example_weight is not None)
        if ready is not None:
            functions: dict[str, Callable[..., Any]] = {"the loss": self.example_losses}
            for metric in self.metrics:
                functions[f"metric {metric.name!r}"] = functools.partial(self.metric_values, metric)
            check_functions(functions, (label_spec, inspection.output_spec), ready.weights)
        layers = (local_layers, frozen_layers)
        local, frozen_names = ((n,) if isinstance(n, str) else tuple(n) for n in layers)
        variables = split_variables(inspection.variables, local, frozen_names)
        self._creation_keys, self._assigns = inspection.keys, inspection.assigns
        self._untrained = inspection.untrained
        # Layers that have been adapted, or that are not trainable, keep their initial values.
        untrained = inspection.untrained - inspection.updated
        fixed = [v for v in variables if v.name in untrained and not v.is_frozen]
        starts = {v.name: start_of(v, inspection.values) for v in fixed}
        constants = {name: value for name, value in starts.items() if value is not None}
        self.all_variables = tuple(
            dataclasses.replace(v, is_local=False, is_frozen=True) if v.name in constants else v
            for v in variables
        )
        if frozen is None:
            names = [v.name for v in self.all_variables if v.is_frozen]
            values = {**inspection.values, **constants}
            frozen = FrozenVariables.of({n: values[n] for n in names if n in values})
        else:
            frozen = FrozenVariables.of(
                {name: value for name, value in constants.items() if name not in frozen.paths}
            ).followed_by(frozen)
        self.frozen = frozen
        moving = {n for v in self.all_variables if not v.is_frozen for n in v.names}
        self._frozen_paths = {n for v in self.all_variables for n in v.names} - moving
        self._check_frozen(inspection.untrained)
        self.variables = tuple(v for v in self.all_variables if not v.is_frozen)
        self.global_variables = tuple(v for v in self.variables if not v.is_local)
        self.local_variables = tuple(v for v in self.variables if v.is_local)
        self._check_lookups()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.describe_variables()}>"

    def describe_variables(self) -> str:
        """Returns the number of scalars of each kind of variable, and the first names."""
        frozen = [v for v in self.all_variables if v.is_frozen]
        kinds = {
            "global": self.global_variables, "local": self.local_variables, "frozen": frozen
        }  # fmt: skip
        parts = []
        for kind, variables in kinds.items():
            names = ", ".join(v.name for v in variables[:4]) + ", ..." * (len(variables) > 4)
            if variables:
                parts.append(f"{sum(v.size for v in variables):,} {kind} ({names})")
        return ", ".join(parts)

    def _share_state(self, base: PartitionedModel) -> None:
        """Shares the attributes of another model, with the same layers and data, as its base."""
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
            shape = self.frozen.shapes.get(variable.name)
            if variable.is_frozen and shape != variable.shape:
                raise UserError(
                    f"frozen variable {variable.name!r} of shape {variable.shape} needs a value of "
                    f"that shape; given: {shape or 'none'}. Give a built Keras model, whose values "
                    "are taken, or frozen=."
                )

    def _check_lookups(self) -> None:
        check_names("lookups", self.lookups, self.variables)
        for layer, feature in self.lookups.items():
            names = [v.name for v in self.variables if layer in v.names]
            if len(names) != 1:
                raise UserError(
                    f"lookup layer {layer!r} must own exactly one variable, its table; it owns "
                    f"{names}."
                )
            (table,) = (v for v in self.variables if v.name == names[0])
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
        if not self.per_client_tables <= set(self.lookups):
            raise UserError(
                f"per_client_tables {sorted(self.per_client_tables - set(self.lookups))} are not "
                f"among the lookups {sorted(self.lookups)}."
            )

    @functools.cached_property
    def tables(self) -> dict[str, str]:
        """Variable name of each lookup table to the input whose ids select its rows."""
        named = {v.name: v.first_name(self.lookups) for v in self.variables}
        return {name: self.lookups[layer] for name, layer in named.items() if layer is not None}

    @functools.cached_property
    def global_tables(self) -> dict[str, str]:
        """The subset of `tables` for which clients send only the rows that they touch.

        A client has all rows of a local table, and of a copy that it sends in place of a global
        table.
        """
        whole = {v.name for v in self.variables if v.is_local or v.is_replaced}
        return {name: feature for name, feature in self.tables.items() if name not in whole}

    @property
    def packed_tables(self) -> Mapping[str, str]:
        """The subset of `tables` for which packing lists the rows that each client touches."""
        return self.base.global_tables

    @functools.cached_property
    def server_rows_per_client(self) -> frozenset[str]:
        """Variable names of the lookup tables whose rows belong to one client each."""
        return frozenset(v.name for v in self.variables if v.first_name(self.per_client_tables))

    @property
    def initialized_locals(self) -> tuple[VariableSpec, ...]:
        """The local variables whose initial values their initializers give: all but the copies."""
        return tuple(v for v in self.local_variables if v.name not in self.copies)

    @property
    def base(self) -> PartitionedModel:
        """The model without personal copies, or clusters."""
        return self if self._base is None else self._base

    @property
    def personal(self) -> PartitionedModel:
        """The model that a client predicts with: with its personal copies, if it has any."""
        return self

    def as_keras_values(self, values: Mapping[str, tf.Tensor]) -> Mapping[str, tf.Tensor]:
        """Returns values with which the Keras model is applied, under its variables' names."""
        return values

    @property
    def ignored_locals(self) -> Collection[str]:
        """Names of the local variables that `as_keras_values` ignores."""
        return ()

    def initial_copy(self, value: Any) -> Any:
        """Returns the initial value of a personal copy of a value sent, an array or a tensor."""
        return value

    def clamped(self, values: Values) -> Values:
        """Returns values of variables, (C, ...), after a step, clamped to their ranges."""
        return values

    def build(self) -> keras.Model:
        """Returns a new Keras model with new variables."""
        model = self._build_model()
        freeze_layers(model, self._frozen_paths)
        return model

    def arrange(self, features: Mapping[str, tf.Tensor]) -> ModelInputs:
        """Returns features by input name in the structure with which the model is called."""
        return arrange_inputs(features, self.input_spec, self._takes)

    def initial_values(self, variables: Sequence[VariableSpec], seed: tf.Tensor) -> Values:
        """Samples initial values with the layers' initializers, by name; requires a graph.

        `seed` is int32 of shape (2,), or (n, 2) for n values each; equal seeds give equal values.
        """
        return {v.name: v.initializer(seed + [0, 7919 * i]) for i, v in enumerate(variables)}

    def initial_global_values(self, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns initial values of the global variables, variable name to array."""
        return self._sample(self.global_variables, [seed, 0])

    def initial_local_values(self, *, seed: int = 0) -> dict[str, np.ndarray]:
        """Returns sampled initial values of local variables, without copies, by name."""
        return self._sample(self.initialized_locals, [seed, -1])

    def _sample(self, variables: Sequence[VariableSpec], seed: Sequence[int]) -> dict:
        names = tuple(v.name for v in variables)
        if names not in self._samplers:  # TensorFlow warns of functions that are traced repeatedly.
            sample = functools.partial(self.initial_values, variables)
            self._samplers[names] = tf.function(sample, autograph=False)
        values = self._samplers[names](tf.constant(seed, tf.int32))
        return {k: v.numpy() for k, v in values.items()}

    @functools.cached_property
    def _samplers(self) -> dict[tuple[str, ...], Callable[[tf.Tensor], Values]]:
        """Functions that sample initial values of variables, by the variables' names."""
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
        """Applies the model with values in place of its variables; requires a graph.

        Args:
            values: Variable name to value, for all `variables`. A lookup table may have fewer rows,
                if the ids in `features` select among those.
            features: Input name to tensor, batch dimension first.
            training: Keras' training flag.
            noise: uint64 (batch,), each example's seed for the random numbers of layers such as
                Dropout; None for constant seeds.
            rows_in_order: Whether lookup tables have a row for each id, and ids count from 0.

        Returns:
            The model's output, and the losses that it adds (one value per example, or scalars).
        """
        values = self.as_keras_values(values)
        ordered = [
            self._frozen_value(v) if v.is_frozen else values[v.name] for v in self.all_variables
        ]
        remaining = list(zip(self._creation_keys, ordered))

        def substitute(_, **kwargs):
            if remaining and creation_key(kwargs) == remaining[0][0]:
                value = remaining.pop(0)[1]
                # A layer with a regularizer reads the variable's name, which a constant lacks.
                if not self._assigns and not isinstance(value, tf.__internal__.EagerTensor):
                    return value
                options = {name: kwargs.get(name) for name in ("name", "trainable", "constraint")}
                return StandInVariable(initial_value=value, **options)
            if kwargs.get("trainable") is not False and kwargs.get("dtype") != "int64":
                raise UserError(
                    "build_model created more variables than at its first call, or others; it "
                    f"must create the same ones each time: {[v.name for v in self.all_variables]}."
                )
            value = kwargs["initial_value"]
            if kwargs.get("name") == "StateVar":  # The state of a random generator of Keras.
                with tf.init_scope():
                    return ResourceVariable(value, trainable=False, dtype=kwargs.get("dtype"))
            # A variable of an optimizer or a Keras metric, which is not used here.
            return tf.convert_to_tensor(value() if callable(value) else value)

        # Keras reads a variable by using it as a tensor, so a tensor can replace it.
        with tf.variable_creator_scope(substitute), recorded_compile():
            model = self.build()
            if self.draws_noise:
                if noise is None:
                    batch = tf.shape(next(iter(features.values())))[0]
                    noise = fold(tf.zeros([], tf.uint64), tf.range(batch))
                NoiseDraws(noise).give_to(model)
            if rows_in_order:
                skip_lookups(model, self.base.lookups)
            # As in Keras, a model may branch on tensors, also within a graph without AutoGraph.
            with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
                output = model(self.arrange(features), training=training)
        losses = list(model.losses)
        return output if self.masks_output else drop_mask(output), losses

    def _frozen_value(self, variable: VariableSpec) -> tf.Tensor:
        if variable.name not in self._untrained or variable.size > MOST_READ:
            return self.frozen.tensor(variable.name)
        with tf.init_scope():  # Layers may read these values when they are built.
            return tf.constant(self.frozen.array(variable.name))

    def example_losses(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns the loss of each example, float32 (batch,), without losses that the model adds.

        The mean over a batch is Keras' loss of the batch. If that depends on the batch as a whole,
        the examples must form one client's batch, and each has the loss of the batch.
        """
        return self._example_loss(labels, self.as_output(predictions))

    def metric_values(
        self, metric: Metric, labels: tf.Tensor, predictions: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns a metric's value and weight of each example, float32 (batch,)."""
        shape = self.as_output if isinstance(metric, KerasMetric) else self.as_labels
        return metric.weigh(labels, shape(predictions), self.example_weights(labels))

    def example_weights(self, labels: tf.Tensor) -> tf.Tensor:
        """Returns the weight of each example, float32 (batch,)."""
        if self.example_weight is None:
            return tf.ones(tf.shape(labels)[:1])
        return tf.cast(self.example_weight(labels), tf.float32)

    def as_labels(self, predictions: tf.Tensor) -> tf.Tensor:
        """Drops a last axis of size 1 that labels lack: Keras models often end in Dense(1)."""
        if predictions.shape.rank == self.label_spec.shape.rank + 1 and predictions.shape[-1] == 1:
            notes = map_logits(notes_of(predictions), lambda t: tf.squeeze(t, -1))
            return with_notes(tf.squeeze(predictions, -1), notes)
        return predictions

    def as_output(self, predictions: tf.Tensor) -> tf.Tensor:
        """Returns predictions in the form that Keras' losses take.

        This restores the axis that `as_labels` may have dropped, and drops a mask that does not
        count.
        """
        if self._has_unit_axis and predictions.shape.rank == self.label_spec.shape.rank:
            notes = map_logits(notes_of(predictions), lambda t: t[..., tf.newaxis])
            predictions = with_notes(predictions[..., tf.newaxis], notes)
        return predictions if self.masks_output else drop_mask(predictions)
