"""Detection of computations that mix the examples of a batch.

Batch statistics, in-batch negatives and losses balanced by class make the result of an example
depend on others of its batch. This is correct among examples of one client, and wrong among those
of several clients or with padding. It is detected numerically: results of a few examples in one
batch are compared with those of each example alone.
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

from fedpersonal.errors import UserError, one_line
from fedpersonal.model.keras import mask_of, match_shapes
from fedpersonal.model.lookups import random_features, random_values
from fedpersonal.model.metrics import PerExample
from fedpersonal.model.noise import fold
from fedpersonal.model.partition import PartitionedModel, Values
from fedpersonal.randomness import Purpose, generator

_log = logging.getLogger(__name__)

# Labels of the trial's examples. Neither half nor all are equal, and models hardly have an axis of
# this size.
_BITS = np.array([0, 1, 1, 0, 1, 1, 1])
_COUNT = len(_BITS)
# Examples that functions are called with alone, of both labels; a call takes milliseconds.
_ALONE = [0, 1, 4]
# Sizes tried for unknown dimensions; some layers require the larger.
_PLACES = (3, 48)


class Mixing(NamedTuple):
    """Computations that depend on the other examples of a batch.

    Attributes:
        rows: Whether the model's output for an example does, or a loss that it adds.
        functions: Which of loss, example_weight and metrics do, as named in messages.
        adds_batch_losses: Whether the model adds a loss that is not one value per example.
    """

    rows: bool
    functions: tuple[str, ...]
    adds_batch_losses: bool


# Cached by the training flag: building a model is slow, and each evaluation needs the result.
_MIXING: weakref.WeakKeyDictionary[PartitionedModel, dict[bool, Mixing]]
_MIXING = weakref.WeakKeyDictionary()
# `Mixing.functions`, which do not depend on the training flag.
_FUNCTIONS: weakref.WeakKeyDictionary[PartitionedModel, tuple[str, ...]]
_FUNCTIONS = weakref.WeakKeyDictionary()


def find_mixing(model: PartitionedModel, *, training: bool) -> Mixing:
    """Detects computations that mix the examples of a batch.

    Computations that cannot be tried count as mixing.

    Args:
        model: A model without personal copies.
        training: Keras' training flag.

    Raises:
        UserError: If loss, example_weight or a metric does not return one number per example.
    """
    cached = _MIXING.setdefault(model, {})
    if training not in cached:
        cached[training] = _try(model, training=training)
    return cached[training]


def _try(model: PartitionedModel, *, training: bool) -> Mixing:
    with context.eager_mode():  # The caller may be in a graph.
        for places in _PLACES:
            try:
                (output, *added), alone = _apply(model, places, training=training)
                break
            except UserError:
                raise
            except Exception as error:  # A layer's code may raise anything.
                reason = one_line(error)
        else:
            _log.warning("a model is computed client by client, since a trial failed: %s", reason)
            return Mixing(True, ("the loss",), True)
        is_batch_loss = [loss.shape != (_COUNT,) for loss in added]
        if model.masks_output:  # Its mask comes first.
            is_batch_loss[0] = False
        expected = [np.concatenate([one[0] for one in alone])]
        for i, is_one in enumerate(is_batch_loss, 1):
            # A loss of a batch may be a penalty on variables, equal for any batch.
            join: Any = np.stack if is_one else np.concatenate
            expected.append(join([one[i] for one in alone]))
        rows = any(map(_differs, (output, *added), expected))
        if model not in _FUNCTIONS:
            _FUNCTIONS[model] = tuple(_mixing_functions(model, output, places))
    return Mixing(rows, _FUNCTIONS[model], any(is_batch_loss))


def check_rows_are_independent(model: PartitionedModel, *, training: bool) -> None:
    """Checks that no result for an example depends on others of its batch.

    Raises:
        UserError: If one does: clients' examples must not be pooled then.
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
    """Applies a model with random values to a few examples.

    Returns:
        The output, its mask if any, and the added losses, for all examples in one batch; and a list
        of these for each example alone.
    """
    # Scaled down, since a recurrent layer amplifies rounding errors in sums of large numbers.
    normal = random_values(model)
    values = {k: v / math.sqrt(v.shape[:-1].num_elements()) for k, v in normal.items()}
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

    def apply_to(rows: slice) -> list[np.ndarray]:
        selected = {k: v[rows] for k, v in features.items()}
        return [t.numpy() for t in run(values, selected, noise[rows])]

    return apply_to(slice(None)), [apply_to(slice(i, i + 1)) for i in range(_COUNT)]


def _mixing_functions(model: PartitionedModel, output: np.ndarray, places: int) -> Iterator[str]:
    """Yields which of loss, example_weight and metrics depend on other examples."""
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
        results = [_depends(what, function, *trial, shape) for trial in trials]
        is_tried = any(one is not None for one in results)
        if not is_tried:
            _log.warning("%s takes no labels of a trial: it is computed client by client", what)
        if True in results or not is_tried or what == "the loss" and model.masks_output:
            yield what


def _of_labels(weight: Callable[..., Any]) -> Callable[..., Any]:
    return lambda labels, _: weight(labels)


def _trials(
    model: PartitionedModel, output: np.ndarray, places: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields labels with predictions: probabilities, the model's output, and normal numbers."""
    random, spec = generator(Purpose.TRIAL, 0), model.label_spec
    shape = [_COUNT, *(size or places for size in spec.shape[1:])]
    bits = (random.integers(0, 2, shape).T ^ _BITS).T
    classes = output.shape[-1] if output.ndim > len(shape) else 2
    others: np.ndarray
    if not spec.dtype.is_floating:
        others = random.integers(0, classes, shape)
    elif output.shape == tuple(shape):
        others = random.normal(size=shape)
    else:  # They may be classes; TensorFlow logs a message for those out of range.
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
    """Returns whether a function's values depend on other examples; None if it raises an error."""

    def call(function: Callable[..., Any], end: int, start: int = 0) -> np.ndarray:
        output = shape_output(tf.constant(predictions[start:end]))
        return np.asarray(function(tf.constant(labels[start:end]), output))

    try:
        together = call(function, _COUNT)
        alone = [call(function, i + 1, i) for i in _ALONE]
        shape, is_one_each = together.shape, together.shape == (_COUNT,)
        if isinstance(function, PerExample):
            shape, one = (call(function.call_function, count).shape for count in (_COUNT, 1))
            # A number for the whole batch is repeated for each example.
            is_one_each = not shape or shape[0] == _COUNT and shape[1:] in ((), one[1:])
    except Exception:  # A user's code may raise anything.
        return None
    if not is_one_each:
        if isinstance(function, PerExample):
            labels, predictions = match_shapes(
                tf.constant(labels), shape_output(tf.constant(predictions))
            )
        raise UserError(
            f"{what} returns shape {shape} for {_COUNT} examples, whose labels have shape "
            f"{labels.shape} and predictions {predictions.shape}: it must be one number per "
            "example. Squeezing only one of the two pairs each example with all others; squeeze "
            "both or neither."
        )
    return _differs(together[_ALONE], np.hstack(alone), 1e-5)


def _differs(together: np.ndarray, alone: np.ndarray, tolerance: float = 1e-4) -> bool:
    """Returns whether values differ by more than rounding, or all of `alone` are not finite."""
    finite = np.isfinite(alone)
    if not finite.any():
        return True
    apart = np.abs(np.where(finite, np.subtract(together, alone, dtype=np.float64), 0.0)).max()
    return bool(
        (np.isfinite(together) != finite).any() or apart > tolerance * abs(alone[finite]).max()
    )
