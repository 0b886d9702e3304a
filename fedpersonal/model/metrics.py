"""Metrics that are ratios of two sums over examples, so that sums of clients can be added."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.core import ag_ctx
from tensorflow.python.autograph.impl import api as autograph

from fedpersonal.errors import UserError, one_line
from fedpersonal.model.keras import (
    as_loss,
    keras,
    loss_of_batch,
    mask_of,
    match_shapes,
    mean_function,
    notes_of,
    overridden_method,
    takes_mean,
    weigh_values,
    with_notes,
)

Mean = Union[tf.Tensor, np.ndarray]


def _identity(mean: Mean) -> Mean:
    return mean


@dataclasses.dataclass(frozen=True)
class Metric:
    """A function of a weighted mean over examples.

    Attributes:
        name: Column name.
        example_value: Maps (labels, predictions) to float32 values of shape (batch,). If an
            example has a weight, such as a sentence's number of tokens, the value is the sum over
            these.
        finalize: Maps the mean, a tensor or an array of means, to the metric by plain operators.
        example_weight: Maps labels to float32 (batch,), the weight of each example. None for the
            model's weights.
    """

    name: str
    example_value: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
    finalize: Callable[[Mean], Mean] = _identity
    example_weight: Callable[[tf.Tensor], tf.Tensor] | None = None

    def weigh(
        self, labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns value and weight of each example, float32 (batch,).

        Args:
            labels: (batch, ...).
            predictions: The model's output, without a last axis of one that labels lack.
            weights: float32 (batch,), the model's weights of examples.
        """
        if self.example_weight is not None:
            weights = tf.cast(self.example_weight(labels), tf.float32)
        return self.example_value(labels, predictions), weights


RMSE = Metric("rmse", lambda labels, predictions: tf.square(predictions - labels), lambda m: m**0.5)
MAE = Metric("mae", lambda labels, predictions: tf.abs(predictions - labels))
HALF_STAR_ACCURACY = Metric(
    "accuracy", lambda labels, predictions: tf.cast(tf.abs(predictions - labels) <= 0.5, tf.float32)
)
RATING_METRICS = (RMSE, MAE, HALF_STAR_ACCURACY)


def class_accuracy(name: str = "accuracy") -> Metric:
    """Returns the metric that is the share of examples whose most likely class is the label.

    Labels are int32 (batch,), predictions float32 (batch, num_classes), logits or probabilities.
    """

    def is_right(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        chosen = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
        return tf.cast(tf.equal(chosen, labels), tf.float32)

    return Metric(name, is_right)


def binary_accuracy(name: str = "accuracy") -> Metric:
    """Returns the metric that is the share of logits with the right sign; 0 is negative.

    Labels are (batch,) of 0 and 1 in any dtype, predictions float32 (batch,), logits.
    """

    def is_right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.equal(logits > 0, tf.cast(labels, tf.bool)), tf.float32)

    return Metric(name, is_right)


def finalize(metrics: Sequence[Metric], sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Converts sums over examples to metrics, elementwise; NaN if there was no example.

    Args:
        metrics: The metrics.
        sums: A metric's name, or `loss`, to (..., 2), the sums of its example values and weights.
    """
    finalizers = {"loss": _identity, **{m.name: m.finalize for m in metrics}}
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: finalizers[name](np.divide(*np.moveaxis(np.asarray(total, np.float64), -1, 0)))
            for name, total in sums.items()
        }


def ranking_metrics(
    scores: np.ndarray, *, at: int, candidates: np.ndarray | None = None
) -> dict[str, np.ndarray]:
    """Computes hit rate and NDCG of a single relevant item at a cut-off, for each client.

    Items of equal scores are in random order; the metrics are expectations over it. If scores are
    NaN, the relevant item is last. A client with at most as many candidates as the cut-off has the
    metric NaN, since any order has the item above the cut-off.

    Args:
        scores: Floats (num_clients, width), the relevant item's first.
        at: The cut-off, such as 10.
        candidates: Which scores count, bool of the same shape, including the relevant item's; None
            for all.

    Returns:
        `hr@10` and `ndcg@10`, float64 (num_clients,).
    """
    first, others = scores[:, :1], scores[:, 1:]
    is_other = np.ones(others.shape, bool) if candidates is None else candidates[:, 1:]
    counts = is_other.sum(1, keepdims=True)
    tied = (is_other & (others == first)).sum(1, keepdims=True)
    before = counts - tied - (is_other & (others < first)).sum(1, keepdims=True)
    places = np.arange(at)
    chances = ((before <= places) & (places <= before + tied)) / (1.0 + tied)
    chances[counts[:, 0] < at] = np.nan
    return {f"hr@{at}": chances.sum(1), f"ndcg@{at}": chances @ (1.0 / np.log2(places + 2.0))}


ExampleFn = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]
Loss = Union[str, keras.losses.Loss, ExampleFn]


class PerExample:
    """A function of labels and outputs in the shapes of Keras' fit, with one float per example."""

    def __init__(self, function: ExampleFn):
        """Takes the function."""
        self._function = function

    def call_function(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns the value of the function itself."""
        return _with_autograph(self._function, *match_shapes(labels, output))

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns one number per example; a number for the whole batch is repeated."""
        return _mean_of_places(self.call_function(labels, output), labels)


class ExampleLoss(PerExample):
    """A loss in any form that Keras takes, with one float32 per example; their mean is Keras' loss.

    Attributes:
        is_mean: Whether Keras' loss is the mean over a batch of the function's values, as long as
            nothing is masked. If not, each example has the loss of its batch.
    """

    def __init__(self, loss: Loss):
        """Takes a Keras loss, its name, or a function.

        Raises:
            UserError: If Keras has no such loss, or it has no single number for a batch.
        """
        try:
            self._loss = as_loss(loss)
        except (ValueError, TypeError) as error:
            raise UserError(f"loss: {one_line(error)}") from error
        super().__init__(self._loss.call)
        self.is_mean = takes_mean(self._loss)
        if self._loss.reduction == "none":
            raise _no_single_number("reduction='none'")

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns one number per example."""
        try:
            if self.is_mean and mask_of(output) is None:
                values = self.call_function(labels, output)
                if mask_of(values) is None:
                    return tf.cast(_mean_of_places(values, labels), tf.float32)
            pair = match_shapes(labels, output)
            value = _with_autograph(lambda *pair: loss_of_batch(self._loss, *pair), *pair)
        except (TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(
                f"the loss cannot be computed from labels of shape {labels.shape} and an output of "
                f"shape {output.shape}: {one_line(error)}"
            ) from error
        if value.shape.rank:
            raise _no_single_number(f"for a batch it returns shape {value.shape}")
        return tf.fill(tf.shape(labels)[:1], tf.cast(value, tf.float32))


def _no_single_number(reason: str) -> UserError:
    return UserError(
        f"the loss has no single number for a batch ({reason}): Keras' fit would train by the sum "
        "and report the mean. Leave `reduction` out for the mean, or give reduction='sum'."
    )


def _mean_of_places(values: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
    """Returns one number per example, (batch,); a number for the whole batch is repeated."""
    if values.shape.rank == 0:
        return tf.fill(tf.shape(labels)[:1], values)
    if values.shape.rank and values.shape.rank > 1:
        values = tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
    return values


def _with_autograph(function: ExampleFn, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Calls a function, with AutoGraph if it branches on tensors."""
    try:
        return function(labels, output)
    except tf.errors.OperatorNotAllowedInGraphError:
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            return autograph.tf_convert(function, ag_ctx.control_status_ctx())(labels, output)


@dataclasses.dataclass(frozen=True)
class KerasMetric(Metric):
    """A metric of the mean of a Keras function's values over places that are not masked.

    The function is called with labels and output in the shapes of Keras' fit.
    """

    example_value: PerExample

    def weigh(
        self, labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Metric`; with a mask, an example's weight is the sum of its places' weights."""
        raw = self.example_value.call_function(labels, predictions)
        try:
            values, place_weights = weigh_values(raw, predictions)
        except ValueError as error:
            raise UserError(
                f"metric {self.name!r} returns shape {raw.shape}, which Keras cannot weigh by "
                f"the mask of the model's output: {one_line(error)}"
            ) from error
        if place_weights is None:
            return _mean_of_places(values, labels), weights
        axes = list(range(1, values.shape.rank))
        # Masked values may be NaN.
        weighed = tf.where(place_weights > 0, values * place_weights, 0.0)
        return tf.reduce_sum(weighed, axes), tf.reduce_sum(place_weights, axes)


AnyMetric = Union[Metric, str, keras.metrics.Metric, ExampleFn]
Metrics = Union[AnyMetric, Sequence[AnyMetric]]

# Names that Keras resolves by the shapes of labels and predictions: binary, sparse, categorical.
_BY_SHAPE = {
    kind: [f"{prefix}_{kind}" for prefix in ("binary", "sparse_categorical", "categorical")]
    for kind in ("accuracy", "crossentropy")
}
_SHORT = {"acc": "accuracy", "ce": "crossentropy"}


def as_metrics(metrics: Metrics, *, are_weighted: bool) -> tuple[Metric, ...]:
    """Converts metrics, in any form that `PartitionedModel` takes, to `Metric`s.

    Args:
        metrics: The metrics.
        are_weighted: Whether examples have weights, which Keras metrics do not support.

    Raises:
        UserError: If one is no mean over examples, is unknown, or has the name of another.
    """
    converted = [
        metric if isinstance(metric, Metric) else _convert(metric, are_weighted)
        for metric in tf.nest.flatten(metrics)
    ]
    names = ["loss", *(metric.name for metric in converted)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"metrics: two have the name {twice[0]!r}; `loss` is always reported.")
    return tuple(converted)


def _name_of(metric: Any) -> str:
    """Returns a metric's name as Keras has it, or its class' name in snake case."""
    names = (getattr(metric, name, None) for name in ("name", "__name__"))
    class_name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
    return next(filter(None, names), class_name)


def _convert(argument: str | keras.metrics.Metric | ExampleFn, are_weighted: bool) -> Metric:
    metric: Any = _by_name(argument) if isinstance(argument, str) else argument
    if isinstance(metric, type):
        raise UserError(f"metrics: {argument!r} is a class; give an object, {metric.__name__}().")
    name = argument if isinstance(argument, str) else _name_of(metric)
    if are_weighted:
        raise UserError(
            f"metrics: Keras' {name!r} does not support example_weight, the weight of an example. "
            "Give a fedpersonal.model.metrics.Metric of sums."
        )
    function = metric if isinstance(metric, _ByShape) else mean_function(metric)
    if function is None:
        raise UserError(
            f"metrics: {name!r} ({type(metric).__name__}) is no mean over examples, so it cannot "
            "be summed over clients. Means are accuracies, errors and cross-entropies such as "
            "'accuracy', 'mae' and RootMeanSquaredError(); or give a "
            "fedpersonal.model.metrics.Metric."
        )
    changed = overridden_method(metric)
    if changed:
        raise UserError(
            f"metrics: {name!r} ({type(metric).__name__}) overrides {changed}, so it cannot be "
            "summed over clients. Give its function alone, which returns one value per example, or "
            "a fedpersonal.model.metrics.Metric."
        )
    is_root = type(metric) is keras.metrics.RootMeanSquaredError
    finalizer = (lambda mean: mean**0.5) if is_root else _identity
    return KerasMetric(name, PerExample(_in_float32(function)), finalizer)


def _by_name(name: str) -> keras.metrics.Metric | ExampleFn:
    if _SHORT.get(name, name) in _BY_SHAPE:
        return _ByShape(_BY_SHAPE[_SHORT.get(name, name)])
    with contextlib.suppress(ValueError):
        metric = keras.metrics.get(name)
        if not isinstance(metric, str):  # Keras returns some names unchanged if it has no metric.
            return metric
    raise UserError(
        f"metrics: Keras has no metric {name!r}; names are such as 'accuracy', 'mse', 'mae', "
        "'sparse_categorical_crossentropy' and 'sparse_top_k_categorical_accuracy'."
    )


class _ByShape:
    """A metric that is one of three, chosen by shapes as Keras chooses its `accuracy`."""

    def __init__(self, names: Sequence[str]):
        self._functions: list[Any] = [mean_function(keras.metrics.get(name)) for name in names]

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        binary, sparse, categorical = self._functions
        if output.shape[-1] == 1:
            return binary(labels, output)
        is_sparse = labels.shape.rank < output.shape.rank or labels.shape[-1] == 1
        return (sparse if is_sparse else categorical)(labels, output)


def _in_float32(fn: ExampleFn) -> ExampleFn:
    """Converts a Keras function to float32, as Keras' objects do, and keeps its mask."""

    def values(labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        pair = tf.cast(labels, tf.float32), tf.cast(output, tf.float32)
        result = fn(*pair)
        return with_notes(tf.cast(result, tf.float32), notes_of(result))

    return values
