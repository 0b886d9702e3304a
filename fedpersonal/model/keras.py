"""Keras, and all that the library uses of it beyond what its documentation promises.

No other module imports Keras' own modules or touches its private attributes, so that a version
which moves one is met here. Elsewhere `keras` is taken from here.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow import keras

from fedpersonal.errors import UserError

# Keras 2 is TensorFlow's own up to 2.15, and the package tf_keras after it.
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
        "tf.keras is Keras 3 here, which fedpersonal does not know: install tf_keras, and import "
        "fedpersonal before tf.keras is used, or set TF_USE_LEGACY_KERAS=1."
    ) from None


def list_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """Returns a model with all its layers, those within layers, too."""
    return list(model._flatten_layers())


def layers_within(
    layer: keras.layers.Layer, outer: Sequence[str] = ()
) -> Iterator[tuple[list[str], keras.layers.Layer]]:
    """Yields all layers within a layer or model, each with the paths that lead to it, and it last.

    Outer layers come before inner ones.
    """
    for child in layer._flatten_layers(recursive=False, include_self=False):
        paths = [*outer, f"{outer[-1]}/{child.name}" if outer else child.name]
        yield paths, child
        yield from layers_within(child, paths)


def freeze(model: keras.Model, paths: Collection[str]) -> None:
    """Has the layers at some paths do what they do outside of training, such as normalise."""
    for around, layer in layers_within(model):
        if around[-1] in paths:
            layer.trainable = False


def compile_arguments(model: keras.Model) -> Mapping[str, Any] | None:
    """Returns what a model was compiled with, as it was given; None if it was not."""
    return model._get_compile_args() if getattr(model, "_is_compiled", False) else None


# What a subclass of Keras' metrics may change of how values are summed up.
_SUMMING = ("update_state", "result", "reset_state", "reset_states", "merge_state", "__call__")


def mean_function(metric: Any) -> Callable[..., tf.Tensor] | None:
    """Returns the function of which a metric is the mean, of labels and output; None for others."""
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
    """Returns the method by which a metric sums up values in a way of its own, or None."""
    known = base_metric.MeanMetricWrapper
    if not isinstance(metric, known):
        return None
    for name in _SUMMING:
        if getattr(type(metric), name) is not getattr(known, name):
            return name
    return None


def match_shapes(labels: tf.Tensor, output: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels and output in the shapes and dtypes that Keras' fit gives losses.

    Numbers (batch,) become (batch, 1): Keras averages over the last axis, which must not be the
    batch.
    """
    if output.shape.rank == 1:
        notes = map_logits(notes_of(output), lambda logits: logits[:, tf.newaxis])
        output = with_notes(output[:, tf.newaxis], notes)
    labels, output, _ = compile_utils.match_dtype_and_rank(labels, output, None)
    return labels, output


def as_loss(given: object) -> keras.losses.Loss:
    """Returns the Keras loss that compile makes of a loss, its name, or a function.

    Raises:
        ValueError: If Keras knows no such loss.
    """
    found = keras.losses.get(given)
    if isinstance(found, keras.losses.Loss):
        return found
    if isinstance(found, type):
        raise ValueError(f"{found.__name__} is a class; give an object, {found.__name__}()")
    if not callable(found):
        raise ValueError(f"{given!r} is no loss, no name of one, and no function")
    return keras_losses.LossFunctionWrapper(found)


def takes_mean(loss: keras.losses.Loss) -> bool:
    """Tells whether a loss is the mean over a batch of what its `call` returns."""
    is_plain = type(loss).__call__ is keras.losses.Loss.__call__
    return is_plain and loss.reduction in ("auto", "sum_over_batch_size")


class _Unrecorded:
    """Stands in for the metric in which Keras records the loss."""

    def update_state(self, *args: Any, **kwargs: Any) -> None:
        """Records nothing."""


def loss_of_batch(loss: keras.losses.Loss, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Returns the loss of a batch as Keras' fit computes it, with the output's mask."""
    container = compile_utils.LossesContainer(loss, total_loss_mean=_Unrecorded())
    return container(labels, output)


# What Keras' losses and metrics read of an output beside its numbers.
_NOTES = ("_keras_mask", "_keras_logits")


def notes_of(output: tf.Tensor) -> dict[str, tf.Tensor]:
    """Returns the mask of an output, and the logits that its probabilities are made of.

    Keras attaches them to the tensor, and operations on the tensor lose them.
    """
    found = {name: getattr(output, name, None) for name in _NOTES}
    return {name: note for name, note in found.items() if note is not None}


def with_notes(output: tf.Tensor, notes: Mapping[str, tf.Tensor]) -> tf.Tensor:
    """Attaches to a tensor what `notes_of` returns."""
    for name, note in notes.items():
        setattr(output, name, note)
    return output


def map_logits(
    notes: Mapping[str, tf.Tensor], fn: Callable[[tf.Tensor], tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns notes with logits changed as their output is."""
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
    """Returns a metric's values, and their weights by the masks of values and output, if any.

    Both have one shape. These are the weights by which Keras' means weigh.
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
    """Returns the function that a loss of Keras' calls, and with which options."""
    found = keras.losses.get(loss)
    if isinstance(found, keras.losses.Loss):
        known, kind = keras_losses.LossFunctionWrapper, type(found)
        if kind.__call__ is not known.__call__ or kind.call is not known.call:
            return found, {}
    return getattr(found, "fn", found), getattr(found, "_fn_kwargs", {})


def label_range(loss: object, num_outputs: int | None) -> tuple[int, int] | None:
    """Returns the least and the largest label that a loss of Keras takes; None of others."""
    fn, options = _function_of(loss)
    if fn is keras.losses.binary_crossentropy:
        return 0, 1
    is_sparse = fn is keras.losses.sparse_categorical_crossentropy
    if not is_sparse or num_outputs is None or options.get("ignore_class") is not None:
        return None
    return 0, num_outputs - 1


def own_metrics(layer: keras.layers.Layer) -> list[keras.metrics.Metric]:
    """Returns the metrics that a layer reports, but for those of `compile`."""
    return list(layer._metrics)


def copy_layer(layer: keras.layers.Layer) -> keras.layers.Layer:
    """Returns a new layer made as another was; one with a vocabulary, often learned, as it is."""
    return layer if hasattr(layer, "lookup_table") else type(layer).from_config(layer.get_config())


def weights_of(layer: keras.layers.Layer) -> list[tf.Variable]:
    """Returns a layer's weights: a vocabulary, which Keras lists among them, is none."""
    return [weight for weight in layer.weights if hasattr(weight, "ref")]


def takes_class_ids(loss: object) -> bool:
    """Tells whether a loss of Keras takes the numbers of classes for labels."""
    return _function_of(loss)[0] is keras.losses.sparse_categorical_crossentropy


def mixes_precision(layer: keras.layers.Layer) -> bool:
    """Tells whether a layer computes in other numbers than its variables are of."""
    return layer.compute_dtype != layer.variable_dtype


def record_inputs(model: keras.Model, name: str) -> list[Any]:
    """Has a layer of a model write down what it is called with, in the list that is returned."""
    seen: list[Any] = []
    for layer in list_layers(model):
        if layer.name == name:
            layer.call = functools.partial(_record, layer.call, seen)
    return seen


def _record(call: Callable[..., Any], seen: list[Any], inputs: Any, *more: Any, **options: Any):
    seen.append(inputs)
    return call(inputs, *more, **options)


def are_probabilities(output: tf.Tensor) -> bool:
    """Tells whether Keras' softmax or sigmoid has made an output."""
    return hasattr(output, "_keras_logits")


def logits_of(output: tf.Tensor) -> tf.Tensor:
    """Returns what Keras' softmax or sigmoid has made an output of, or the output."""
    return getattr(output, "_keras_logits", output)


def as_probabilities(logits: tf.Tensor) -> tf.Tensor:
    """Returns what Keras' softmax makes of logits, or its sigmoid of a single one."""
    made = tf.nn.softmax(logits) if logits.shape[-1] > 1 else tf.sigmoid(logits)
    made._keras_logits = logits  # By which Keras' losses are exact.
    return made


def takes_logits(loss: object) -> bool | None:
    """Tells whether a cross-entropy of Keras' takes logits or probabilities; None of others."""
    fn, options = _function_of(loss)
    names = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")
    is_known = fn in [getattr(keras.losses, name) for name in names]
    return bool(options.get("from_logits")) if is_known else None


def replace_generators(model: keras.Model, generator: object) -> None:
    """Has all layers of a model, such as Dropout, draw from another random generator."""
    for layer in list_layers(model):
        if hasattr(layer, "_random_generator"):
            layer._random_generator = generator


def with_generator(initializer: Any, generator: object) -> Callable[..., tf.Tensor] | None:
    """Returns an initializer that draws from this generator; None if it does not draw."""
    if not hasattr(initializer, "_random_generator"):
        return None
    seeded = copy.copy(initializer)
    seeded._random_generator = generator
    seeded._used = False  # Else Keras warns of equal values, which the seed sees to.
    return seeded


def is_plain(initializer: Any) -> bool:
    """Tells whether an initializer is Keras' own and gives each number whatever the others are."""
    own = keras.initializers.Zeros.__module__
    orthogonal = isinstance(initializer, keras.initializers.Orthogonal)
    return type(initializer).__module__ == own and not orthogonal


def restore_argument_names(model: keras.Model) -> None:
    """Tells operations such as `x[:, :1]` or `tf.reduce_sum(x, 1)` what their arguments are called.

    Keras copies arguments by name, and drops those without. Once a model is built where AutoGraph
    is off, as in `tf.function(autograph=False)`, Keras finds no names for its operations in any
    model built later in the process; their signatures keep them.
    """
    for layer in list_layers(model):
        if isinstance(layer, tf_op_layer.TFOpLambda):
            layer._call_spec.arg_names = list(inspect.signature(layer.call).parameters)


def is_operation(layer: keras.layers.Layer) -> bool:
    """Tells whether a layer is what Keras makes of an operation such as `x[:, 1:]`."""
    return type(layer).__module__ == tf_op_layer.__name__


def is_network(layer: keras.layers.Layer) -> bool:
    """Tells whether a layer is a Sequential or functional model."""
    return hasattr(layer, "_network_nodes")


def describe_connections(network: keras.Model) -> dict[str, Any]:
    """Returns how the layers of a functional model are connected, by name."""
    # Layers that do not say how they were made are connected, too.
    described = functional.get_network_config(network, serialize_layer_fn=lambda _: {})
    described["layers"] = {one["name"]: one["inbound_nodes"] for one in described["layers"]}
    return described


def replace_constants(model: keras.Model) -> None:
    """Makes arrays of numbers such as 2 in `2 * x`: Keras writes no tensors of a graph down."""
    for node in (node for layer in list_layers(model) for node in layer._inbound_nodes):
        node.call_args, node.call_kwargs = tf.nest.map_structure(
            _constant, (node.call_args, node.call_kwargs)
        )


def _constant(part: Any) -> Any:
    value = tf.get_static_value(part) if isinstance(part, tf.Tensor) else None
    return part if value is None else value
