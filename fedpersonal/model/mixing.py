"""Whether what is computed of an example depends on the others of its batch.

Batch statistics, in-batch negatives and losses balanced by class do. That is right among the
examples of one client, and wrong among those of several, or with padding among them. It is found
out numerically: a few examples together, and each alone.
"""

from __future__ import annotations

import logging
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from fedpersonal.draws import Purpose, generator
from fedpersonal.errors import UserError, one_line
from fedpersonal.model.keras import mask_of, match_shapes
from fedpersonal.model.lookups import random_features, random_values
from fedpersonal.model.metrics import PerExample
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel, Values

_log = logging.getLogger(__name__)

# Few, of which neither half nor all have the same label, and hardly an axis of a model's own size.
_BITS = np.array([0, 1, 1, 0, 1, 1, 1])
_COUNT = len(_BITS)
# Those of them that functions are called with alone, of both kinds: each call takes milliseconds.
_ALONE = [0, 1, 4]
# What is given each unknown dimension: some layers need many places.
_PLACES = (3, 48)


class Mixing(NamedTuple):
    """What depends on the other examples of a batch.

    Attributes:
        rows: Whether what the model says of an example does, or a loss that it adds.
        functions: Those of loss, example_weight and metrics that do, as a message names them.
        adds_batch_losses: Whether the model adds a loss that is not one value an example.
    """

    rows: bool
    functions: tuple[str, ...]
    adds_batch_losses: bool


# Building a model takes long, and each evaluation asks.
_FOUND: weakref.WeakKeyDictionary[PartitionedModel, dict[bool, Mixing]]
_FOUND = weakref.WeakKeyDictionary()
# Functions know of no training flag.
_FUNCTIONS: weakref.WeakKeyDictionary[PartitionedModel, tuple[str, ...]]
_FUNCTIONS = weakref.WeakKeyDictionary()


def find_mixing(model: PartitionedModel, *, training: bool) -> Mixing:
    """Finds out what mixes the examples of a batch; what cannot be tried counts as mixing.

    Args:
        model: A model without personal copies.
        training: Keras' training flag.

    Raises:
        UserError: If loss, example_weight or a metric does not return one number an example.
    """
    known = _FOUND.setdefault(model, {})
    if training not in known:
        known[training] = _try(model, training=training)
    return known[training]


def _try(model: PartitionedModel, *, training: bool) -> Mixing:
    with context.eager_mode():  # Whoever asks may be in a graph.
        for places in _PLACES:
            try:
                (output, *added), alone = _apply(model, places, training=training)
                break
            except UserError:
                raise
            except Exception as error:  # Whatever a layer's own code raises.
                reason = one_line(error)
        else:
            _log.warning("a model is computed client by client, since a trial failed: %s", reason)
            return Mixing(True, ("the loss",), True)
        is_batch_loss = [loss.shape != (_COUNT,) for loss in added]
        if model.masks_output:  # Its mask comes first.
            is_batch_loss[0] = False
        own = [np.concatenate([one[0] for one in alone])]
        for i, is_one in enumerate(is_batch_loss, 1):
            # A loss of a batch may be a penalty on variables, the same for any batch.
            join: Any = np.stack if is_one else np.concatenate
            own.append(join([one[i] for one in alone]))
        rows = any(map(_differs, (output, *added), own))
        if model not in _FUNCTIONS:
            _FUNCTIONS[model] = tuple(_mixing_functions(model, output, places))
    return Mixing(rows, _FUNCTIONS[model], any(is_batch_loss))


def check_rows_are_independent(model: PartitionedModel, *, training: bool) -> None:
    """Checks that nothing computed of an example depends on its neighbours in a batch.

    Raises:
        UserError: If it does: clients' examples must not be pooled then.
    """
    rows, functions, _ = find_mixing(model, training=training)
    if rows or functions:
        raise UserError(
            "pooled packing puts examples of several clients in one batch, but "
            f"{'the output of this model' if rows else functions[0]} for an example depends on the "
            "others of its batch, or could not be tried. Use packing='stacked'."
        )


def _apply(
    model: PartitionedModel, places: int, *, training: bool
) -> tuple[list[np.ndarray], list[list[np.ndarray]]]:
    """Applies a model with random values; returns its output, its mask, and what it adds.

    They are of some examples together, and of one after the other.
    """
    # In sums of many large numbers a recurrent layer would make much of their rounding.
    drawn = random_values(model)
    values = {k: v / math.sqrt(v.shape[:-1].num_elements()) for k, v in drawn.items()}
    features = random_features(model, _COUNT, places=places)
    noise = fold(tf.zeros([], tf.uint64), tf.range(_COUNT))

    @tf.function(autograph=False)  # The model is built once.
    def output(values: Values, features: Values, noise: tf.Tensor) -> list[tf.Tensor]:
        predictions, added = model.predict(values, features, training=training, noise=noise)
        mask = mask_of(predictions)
        masks = [] if mask is None else [tf.cast(mask, tf.float32)]
        return [model.as_labels(predictions), *masks, *added]

    specs = {k: tf.TensorSpec([None, *v.shape[1:]], v.dtype) for k, v in features.items()}
    run = output.get_concrete_function(values, specs, tf.TensorSpec([None], tf.uint64))

    def of(rows: slice) -> list[np.ndarray]:
        given = {k: v[rows] for k, v in features.items()}
        return [t.numpy() for t in run(values, given, noise[rows])]

    return of(slice(None)), [of(slice(i, i + 1)) for i in range(_COUNT)]


def _mixing_functions(model: PartitionedModel, output: np.ndarray, places: int) -> Iterator[str]:
    """Yields those of loss, example_weight and metrics that depend on other examples."""
    functions: dict[str, Callable[..., Any]] = {"the loss": model._example_loss}
    for metric in model.metrics:
        functions[f"metric {metric.name!r}"] = metric.example_value
        if metric.example_weight is not None:
            functions[f"the weight of metric {metric.name!r}"] = _of_labels(metric.example_weight)
    if model.example_weight is not None:
        functions["example_weight"] = _of_labels(model.example_weight)
    trials = list(_trials(model, output, places))
    for what, function in functions.items():
        shape = model.as_output if isinstance(function, PerExample) else tf.identity
        found = [_depends(what, function, *trial, shape) for trial in trials]
        is_tried = any(one is not None for one in found)
        if not is_tried:
            _log.warning("%s takes no labels of a trial: it is computed client by client", what)
        if True in found or not is_tried or what == "the loss" and model.masks_output:
            yield what


def _of_labels(weight: Callable[..., Any]) -> Callable[..., Any]:
    return lambda labels, _: weight(labels)


def _trials(
    model: PartitionedModel, output: np.ndarray, places: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields labels and predictions: probabilities, what the model says, and any numbers."""
    random, spec = generator(Purpose.TRIAL, 0), model.label_spec
    shape = [_COUNT, *(size or places for size in spec.shape[1:])]
    bits = (random.integers(0, 2, shape).T ^ _BITS).T
    classes = output.shape[-1] if output.ndim > len(shape) else 2
    others: np.ndarray
    if not spec.dtype.is_floating:
        others = random.integers(0, classes, shape)
    elif output.shape == tuple(shape):
        others = random.normal(size=shape)
    else:  # They may be classes, of which TensorFlow logs those that are out of range.
        others = random.uniform(0.0, output.shape[-1], shape)
    for labels, predictions in (
        (bits, random.uniform(0.05, 0.95, output.shape)),
        (others, np.nan_to_num(output)),
        (bits, random.normal(size=output.shape)),
    ):
        yield labels.astype(spec.dtype.as_numpy_dtype), predictions.astype(output.dtype)


def _depends(
    what: str,
    function: Callable[..., Any],
    labels: np.ndarray,
    predictions: np.ndarray,
    shape_output: Callable[[tf.Tensor], tf.Tensor],
) -> bool | None:
    """Tells whether a function's values depend on other examples; None if it takes no such ones."""

    def call(function: Callable[..., Any], end: int, start: int = 0) -> np.ndarray:
        of_model = shape_output(tf.constant(predictions[start:end]))
        return np.asarray(function(tf.constant(labels[start:end]), of_model))

    try:
        together = call(function, _COUNT)
        alone = [call(function, i + 1, i) for i in _ALONE]
        shape, is_one_each = together.shape, together.shape == (_COUNT,)
        if isinstance(function, PerExample):
            shape, one = (call(function.called, count).shape for count in (_COUNT, 1))
            # One number of a whole batch is taken for each example's.
            is_one_each = not shape or shape[0] == _COUNT and shape[1:] in ((), one[1:])
    except Exception:  # Whatever a user's own code raises.
        return None
    if not is_one_each:
        if isinstance(function, PerExample):
            labels, predictions = match_shapes(
                tf.constant(labels), shape_output(tf.constant(predictions))
            )
        raise UserError(
            f"{what} returns shape {shape} for {_COUNT} examples, whose labels come as "
            f"{labels.shape} and predictions as {predictions.shape}: it must be one number an "
            "example. Squeezing one of the two alone pairs each example with all others; squeeze "
            "both or neither."
        )
    return _differs(together[_ALONE], np.hstack(alone), 1e-5)


def _differs(together: np.ndarray, alone: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Tells whether values differ by more than rounding, or none of them says anything."""
    finite = np.isfinite(alone)
    if not finite.any():
        return True
    apart = np.abs(np.where(finite, np.subtract(together, alone, dtype=np.float64), 0.0)).max()
    return bool(
        (np.isfinite(together) != finite).any() or apart > tolerance * abs(alone[finite]).max()
    )
