"""Keras, and all uses of its undocumented modules and attributes.

No other module imports Keras' internal modules or uses its private attributes, so that changes of
a new Keras version only affect this one. Other modules import `keras` from here.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from fedpersonal.errors import UserError

# Keras 2 is part of TensorFlow up to 2.15, and the package tf_keras after it.
_package = keras.Model.__module__.split(".")[0]
try:
    functional = importlib.import_module(f"{_package}.src.engine.functional")
    compile_utils = importlib.import_module(f"{_package}.src.engine.compile_utils")
    losses_utils = importlib.import_module(f"{_package}.src.utils.losses_utils")
    base_metric = importlib.import_module(f"{_package}.src.metrics.base_metric")
    keras_losses = importlib.import_module(f"{_package}.src.losses")
    tf_op_layer = importlib.import_module(f"{_package}.src.layers.core.tf_op_layer")
except ModuleNotFoundError:
    raise UserError(
        "tf.keras is Keras 3 here, which fedpersonal does not support: install tf_keras, and "
        "import fedpersonal before tf.keras is used, or set TF_USE_LEGACY_KERAS=1."
    ) from None


def list_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model and all its layers, including those within layers."""
    return list(model._flatten_layers())


def layers_within(
    layer: keras.layers.Layer, outer: Sequence[str] = ()
) -> Iterator[tuple[list[str], keras.layers.Layer]]:
    """Yields all layers within a layer or model, outer ones first.

    Each comes with the paths of the layers around it and, last, its own path.
    """
    for child in layer._flatten_layers(recursive=False, include_self=False):
        paths = [*outer, f"{outer[-1]}/{child.name}" if outer else child.name]
        yield paths, child
        yield from layers_within(child, paths)


def freeze_layers(model: keras.Model, paths: Collection[str]) -> None:
    """Makes the layers at these paths behave as in inference, such as batch normalisation."""
    for around, layer in layers_within(model):
        if around[-1] in paths:
            layer.trainable = False


def compile_arguments(model: keras.Model) -> Mapping[str, Any] | None:
    """Returns the arguments of a model's `compile`; None if it was not compiled."""
    return model._get_compile_args() if getattr(model, "_is_compiled", False) else None


# Methods by which a subclass of Keras' metrics may change how values are aggregated.
_AGGREGATING = ("update_state", "result", "reset_state", "reset_states", "merge_state", "__call__")


def mean_function(metric: Any) -> Callable[..., tf.Tensor] | None:
    """Returns the function of labels and output whose mean a metric is; None for other metrics."""
    fn, options = metric, {}
    if isinstance(metric, base_metric.MeanMetricWrapper):
        fn, options = metric._fn, metric._fn_kwargs
    elif type(metric) is keras.metrics.RootMeanSquaredError:
        fn = _squared_errors
    elif isinstance(metric, keras.metrics.Metric):
        return None

    def values(labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        output, labels = losses_utils.squeeze_or_expand_dimensions(output, labels)
        return fn(labels, output, **options)

    return values


def _squared_errors(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
    return tf.math.squared_difference(predictions, labels)


def overridden_method(metric: keras.metrics.Metric) -> str | None:
    """Returns a method of aggregation that a metric overrides, or None."""
    mean = base_metric.MeanMetricWrapper
    if not isinstance(metric, mean):
        return None
    for name in _AGGREGATING:
        if getattr(type(metric), name) is not getattr(mean, name):
            return name
    return None


def match_shapes(labels: tf.Tensor, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels and output in the shapes and dtypes that Keras' fit passes to losses.

    Shape (batch,) becomes (batch, 1): Keras averages over the last axis, which must not be the
    batch.
    """
    if output.shape.rank == 1:
        notes = map_logits(notes_of(output), lambda logits: logits[:, tf.newaxis])
        output = with_notes(output[:, tf.newaxis], notes)
    labels, output, _ = compile_utils.match_dtype_and_rank(labels, output, None)
    return labels, output


def as_loss(loss: object) -> keras.losses.Loss:
    """Converts a loss, its name, or a function to a Keras loss, as `compile` does.

    Raises:
        ValueError: If Keras has no such loss.
    """
    resolved = keras.losses.get(loss)
    if isinstance(resolved, keras.losses.Loss):
        return resolved
    if isinstance(resolved, type):
        raise ValueError(f"{resolved.__name__} is a class; give an object, {resolved.__name__}()")
    if not callable(resolved):
        raise ValueError(f"{loss!r} is no loss, no name of one, and no function")
    return keras_losses.LossFunctionWrapper(resolved)


def takes_mean(loss: keras.losses.Loss) -> bool:
    """Returns whether a loss is the mean over a batch of the values that its `call` returns."""
    is_inherited = type(loss).__call__ is keras.losses.Loss.__call__
    return is_inherited and loss.reduction in ("auto", "sum_over_batch_size")


class _Unrecorded:
    """Replaces the metric in which Keras records the loss."""

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Records nothing."""


def loss_of_batch(loss: keras.losses.Loss, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Computes the loss of a batch as Keras' fit does, with the output's mask."""
    container = compile_utils.LossesContainer(loss, total_loss_mean=_Unrecorded())
    return container(labels, output)


# Attributes of an output tensor that Keras' losses and metrics read.
_NOTES = ("_keras_mask", "_keras_logits")


def notes_of(output: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the mask of an output, and the logits that its probabilities were computed from.

    Keras attaches them to the tensor as attributes; operations on the tensor lose them.
    """
    notes = {name: getattr(output, name, None) for name in _NOTES}
    return {name: note for name, note in notes.items() if note is not None}


def with_notes(output: tf.Tensor, notes: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Attaches notes, such as from `notes_of`, to a tensor, and returns it."""
    for name, note in notes.items():
        setattr(output, name, note)
    return output


def map_logits(
    notes: Mapping[str, tf.Tensor], fn: Callable[[tf.Tensor], tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Applies a function to the logits among notes."""
    return {name: fn(note) if name == "_keras_logits" else note for name, note in notes.items()}


def mask_of(output: tf.Tensor) -> tf.Tensor | None:
    """Returns Keras' mask of a tensor, or None."""
    return getattr(output, "_keras_mask", None)


def drop_mask(output: tf.Tensor) -> tf.Tensor:
    """Returns a tensor without Keras' mask."""
    if mask_of(output) is None:
        return output
    notes = {name: note for name, note in notes_of(output).items() if name != "_keras_mask"}
    return with_notes(tf.identity(output), notes)


def weigh_values(
    values: tf.Tensor, output: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor] | tuple[tf.Tensor, None]:
    """Returns a metric's values, and their weights as Keras' means use them.

    The weights follow from the masks of values and output; None without masks. Both results have
    the same shape.
    """
    weights = mask_of(output)
    weights = losses_utils.apply_mask(values, weights, mask_of(values))
    if weights is None:
        return values, None
    weights = tf.cast(weights, values.dtype)
    if not values.shape.rank:
        return values * tf.ones_like(weights), weights
    values, _, weights = losses_utils.squeeze_or_expand_dimensions(values, None, weights)
    if weights.shape.rank < values.shape.rank:
        values = tf.reduce_mean(values, list(range(weights.shape.rank, values.shape.rank)))
    return values, weights * tf.ones_like(values)


def _function_of(loss: object) -> tuple[object, Mapping[str, Any]]:
    """Returns the function that a Keras loss calls, and its options."""
    resolved = keras.losses.get(loss)
    if isinstance(resolved, keras.losses.Loss):
        wrapper, kind = keras_losses.LossFunctionWrapper, type(resolved)
        if kind.__call__ is not wrapper.__call__ or kind.call is not wrapper.call:
            return resolved, {}
    return getattr(resolved, "fn", resolved), getattr(resolved, "_fn_kwargs", {})


def label_range(loss: object, num_outputs: int | None) -> tuple[int, int] | None:
    """Returns the least and the largest label that a Keras loss takes; None for any range."""
    fn, options = _function_of(loss)
    if fn is keras.losses.binary_crossentropy:
        return 0, 1
    is_sparse = fn is keras.losses.sparse_categorical_crossentropy
    if not is_sparse or num_outputs is None or options.get("ignore_class") is not None:
        return None
    return 0, num_outputs - 1


def reported_metrics(layer: keras.layers.Layer) -> list[keras.metrics.Metric]:
    """Returns the metrics that a layer reports, without those of `compile`."""
    return list(layer._metrics)


def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a new layer with the configuration of another; a layer with a vocabulary itself.

    A vocabulary is often learned from data, and not part of the configuration.
    """
    return layer if hasattr(layer, "lookup_table") else type(layer).from_config(layer.get_config())


def weights_of(layer: keras.layers.Layer) -> list[tf.Variable]:
    """Returns a layer's weights, without vocabularies, which Keras lists among them."""
    return [weight for weight in layer.weights if hasattr(weight, "ref")]


def takes_class_ids(loss: object) -> bool:
    """Returns whether a Keras loss takes ids of classes as labels."""
    return _function_of(loss)[0] is keras.losses.sparse_categorical_crossentropy


def mixes_precision(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer computes in another dtype than that of its variables."""
    return layer.compute_dtype != layer.variable_dtype


def record_inputs(model: keras.Model, name: str) -> list[Any]:
    """Returns a list to which a layer of a model appends its inputs each time it is called."""
    calls: list[Any] = []
    for layer in list_layers(model):
        if layer.name == name:
            layer.call = functools.partial(_record, layer.call, calls)
    return calls


def _record(call: Callable[..., Any], calls: list[Any], inputs: Any, *more: Any, **options: Any):
    calls.append(inputs)
    return call(inputs, *more, **options)


def are_probabilities(output: tf.Tensor) -> bool:
    """Returns whether Keras' softmax or sigmoid computed an output."""
    return hasattr(output, "_keras_logits")


def logits_of(output: tf.Tensor) -> tf.Tensor:
    """Returns the logits that an output's probabilities were computed from, or the output."""
    return getattr(output, "_keras_logits", output)


def as_probabilities(logits: tf.Tensor) -> tf.Tensor:
    """Applies Keras' softmax to logits, or its sigmoid to a single one."""
    probabilities = tf.nn.softmax(logits) if logits.shape[-1] > 1 else tf.sigmoid(logits)
    probabilities._keras_logits = logits  # Keras' losses use them to be exact.
    return probabilities


def takes_logits(loss: object) -> bool | None:
    """Returns whether a Keras cross-entropy takes logits, not probabilities; None for others."""
    fn, options = _function_of(loss)
    names = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
    is_cross_entropy = fn in [getattr(keras.losses, name) for name in names]
    return bool(options.get("from_logits")) if is_cross_entropy else None


def replace_generators(model: keras.Model, generator: object) -> None:
    """Makes all layers of a model, such as Dropout, use another random generator."""
    for layer in list_layers(model):
        if hasattr(layer, "_random_generator"):
            layer._random_generator = generator


def with_generator(initializer: Any, generator: object) -> Callable[..., tf.Tensor] | None:
    """Returns an initializer that uses this random generator; None if it is not random."""
    if not hasattr(initializer, "_random_generator"):
        return None
    seeded = copy.copy(initializer)
    seeded._random_generator = generator
    seeded._used = False  # Else Keras warns of equal values; here seeds make values differ.
    return seeded


def is_elementwise(initializer: Any) -> bool:
    """Returns whether an initializer is one of Keras' that computes each number independently."""
    module = keras.initializers.Zeros.__module__
    orthogonal = isinstance(initializer, keras.initializers.Orthogonal)
    return type(initializer).__module__ == module and not orthogonal


def restore_argument_names(model: keras.Model) -> None:
    """Restores the argument names of operations such as `x[:, :1]` or `tf.reduce_sum(x, 1)`.

    Keras copies arguments by name, and drops those without a name. Once a model is built without
    AutoGraph, as in `tf.function(autograph=False)`, Keras finds no names for the operations of any
    model built later in the process. Their signatures still have the names.
    """
    for layer in list_layers(model):
        if isinstance(layer, tf_op_layer.TFOpLambda):
            layer._call_spec.arg_names = list(inspect.signature(layer.call).parameters)


def is_operation(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is one that Keras makes from an operation such as `x[:, 1:]`."""
    return type(layer).__module__ == tf_op_layer.__name__


def is_network(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer is a Sequential or functional model."""
    return hasattr(layer, "_network_nodes")


def describe_connections(network: keras.Model) -> dict[str, Any]:
    """Returns the connections of a functional model's layers, by layer name."""
    # Without serializing layers, since some have no configuration.
    described = functional.get_network_config(network, serialize_layer_fn=lambda _: {})
    described["layers"] = {one["name"]: one["inbound_nodes"] for one in described["layers"]}
    return described


def replace_constants(model: keras.Model) -> None:
    """Replaces constant tensors, such as 2 in `2 * x`, by arrays: Keras serializes no tensors."""
    for node in (node for layer in list_layers(model) for node in layer._inbound_nodes):
        node.call_args, node.call_kwargs = tf.nest.map_structure(
            _constant, (node.call_args, node.call_kwargs)
        )


def _constant(part: Any) -> Any:
    value = tf.get_static_value(part) if isinstance(part, tf.Tensor) else None
    return part if value is None else value


def skip_lookups(model: keras.Model, names: Container[str]) -> None:
    """Makes embedding layers of these names return their whole tables, where that is equivalent.

    It is equivalent if the layer looks up an input of the model directly; other layers are left
    unchanged.
    """
    inputs = {id(tensor) for tensor in tf.nest.flatten(getattr(model, "inputs", None))}
    for layer in model.layers:
        if (
            layer.name in names
            and type(layer) is keras.layers.Embedding
            and not layer.mask_zero
            and layer.compute_dtype == layer.variable_dtype
            and len(layer.inbound_nodes) == 1
            and id(layer.input) in inputs
        ):
            layer.call = functools.partial(_all_rows, layer)


@tf.autograph.experimental.do_not_convert  # Nothing in it branches on tensors.
def _all_rows(layer: keras.layers.Embedding, ids: tf.Tensor) -> tf.Tensor:
    rows = tf.convert_to_tensor(layer.embeddings)
    if ids.shape.rank == 1:
        return tf.ensure_shape(rows, [ids.shape[0], layer.output_dim])
    return tf.reshape(rows, tf.concat([tf.shape(ids), [layer.output_dim]], 0))
