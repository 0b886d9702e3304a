"""Metrics that are ratios of two sums over examples, so that clients' sums add up."""

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
        example_value: Maps (labels, predictions) to float32 values of shape (batch,). Where an
            example counts as several, as a sentence does as its tokens, their sum.
        finalize: Maps the mean, a tensor or an array of means, to the metric by plain operators.
        example_weight: Maps labels to float32 (batch,): as how many each example counts. None
            stands for the model's own weights.
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
            weights: float32 (batch,): the model's own weights of examples.
        """
        own = self.example_weight
        weight = weights if own is None else tf.cast(own(labels), tf.float32)
        return self.example_value(labels, predictions), weight


RMSE = Metric("rmse", lambda labels, predictions: tf.square(predictions - labels), lambda m: m**0.5)
MAE = Metric("mae", lambda labels, predictions: tf.abs(predictions - labels))
HALF_STAR_ACCURACY = Metric(
    "accuracy", lambda labels, predictions: tf.cast(tf.abs(predictions - labels) <= 0.5, tf.float32)
)
RATING_METRICS = (RMSE, MAE, HALF_STAR_ACCURACY)


def class_accuracy(name: str = "accuracy") -> Metric:
    """Returns the share of examples whose most likely class is the right one.

    Labels are int32 (batch,), predictions float32 (batch, num_classes), logits or probabilities.
    """

    def is_right(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        chosen = tf.argmax(predictions, axis=-1, output_type=labels.dtype)
        return tf.cast(tf.equal(chosen, labels), tf.float32)

    return Metric(name, is_right)


def binary_accuracy(name: str = "accuracy") -> Metric:
    """Returns the share of examples whose logit has the right sign, 0 being negative.

    Labels are (batch,) of 0 and 1 in any dtype, predictions float32 (batch,), logits.
    """

    def is_right(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.equal(logits > 0, tf.cast(labels, tf.bool)), tf.float32)

    return Metric(name, is_right)


def finalize(metrics: Sequence[Metric], sums: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Turns sums over examples into metrics, elementwise; NaN where there was no example.

    `sums` maps a metric's name, or `loss`, to (..., 2): the sums of its example values and weights.
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
    """Returns hit rate and NDCG of a single relevant item at a cut-off, for each client.

    Items of equal scores are in random order: the metrics are what that comes to on average. Where
    scores are no numbers, the relevant item comes last. A client with no more candidates than the
    cut-off has no metric, NaN: any order would have the item there.

    Args:
        scores: Floats (num_clients, width), the relevant item's first.
        at: The cut-off, such as 10.
        candidates: Which scores count, bool of the same shape, the relevant item's among them; None
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
    """A function of labels and outputs in the shapes of Keras' fit, as one float an example."""

    def __init__(self, function: ExampleFn):
        """Takes the function."""
        self._function = function

    def called(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns what the function itself returns."""
        return _with_autograph(self._function, *match_shapes(labels, output))

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns one number an example; one of a whole batch is each example's."""
        return _mean_of_places(self.called(labels, output), labels)


class ExampleLoss(PerExample):
    """A loss in any form that Keras takes, as one float32 an example, whose mean is Keras' loss.

    Attributes:
        is_mean: Whether Keras' loss is the mean over a batch of what the function returns, as long
            as nothing is masked. If not, each example has the loss of its batch.
    """

    def __init__(self, given: Loss):
        """Takes a Keras loss, its name, or a function.

        Raises:
            UserError: If Keras knows no such loss, or it has no single number for a batch.
        """
        try:
            self._loss = as_loss(given)
        except (ValueError, TypeError) as error:
            raise UserError(f"loss: {one_line(error)}") from error
        super().__init__(self._loss.call)
        self.is_mean = takes_mean(self._loss)
        if self._loss.reduction == "none":
            raise _no_single_number("reduction='none'")

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        """Returns one number an example."""
        try:
            if self.is_mean and mask_of(output) is None:
                values = self.called(labels, output)
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
    """Returns one number an example, (batch,); one of a whole batch is each example's."""
    if values.shape.rank == 0:
        return tf.fill(tf.shape(labels)[:1], values)
    if values.shape.rank and values.shape.rank > 1:
        values = tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
    return values


def _with_autograph(function: ExampleFn, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Calls a function, which may branch on tensors as in Keras."""
    try:
        return function(labels, output)
    except tf.errors.OperatorNotAllowedInGraphError:
        with ag_ctx.ControlStatusCtx(ag_ctx.Status.ENABLED):
            return autograph.tf_convert(function, ag_ctx.control_status_ctx())(labels, output)


@dataclasses.dataclass(frozen=True)
class KerasMetric(Metric):
    """A function of the mean of what a Keras function returns, over places that are not masked.

    It is called with the model's output as Keras' fit calls it.
    """

    example_value: PerExample

    def weigh(
        self, labels: tf.Tensor, predictions: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """As of `Metric`; where there is a mask, an example weighs as many as its places do."""
        found = self.example_value.called(labels, predictions)
        try:
            values, of_places = weigh_values(found, predictions)
        except ValueError as error:
            raise UserError(
                f"metric {self.name!r} returns shape {found.shape}, which Keras cannot weigh by "
                f"the mask of the model's output: {one_line(error)}"
            ) from error
        if of_places is None:
            return _mean_of_places(values, labels), weights
        axes = list(range(1, values.shape.rank))
        # What is masked may be anything, even NaN.
        weighed = tf.where(of_places > 0, values * of_places, 0.0)
        return tf.reduce_sum(weighed, axes), tf.reduce_sum(of_places, axes)


AnyMetric = Union[Metric, str, keras.metrics.Metric, ExampleFn]
Metrics = Union[AnyMetric, Sequence[AnyMetric]]

# What Keras makes of a name by the shapes of labels and predictions: binary, sparse, categorical.
_BY_SHAPE = {
    kind: [f"{prefix}_{kind}" for prefix in ("binary", "sparse_categorical", "categorical")]
    for kind in ("accuracy", "crossentropy")
}
_SHORT = {"acc": "accuracy", "ce": "crossentropy"}


def as_metrics(metrics: Metrics, *, are_weighted: bool) -> tuple[Metric, ...]:
    """Turns metrics, in any form that `PartitionedModel` takes, into the library's.

    `are_weighted` tells whether examples count as several, which Keras metrics do not know.

    Raises:
        UserError: If one is no mean over examples, is unknown, or has the name of another.
    """
    found = [
        metric if isinstance(metric, Metric) else _convert(metric, are_weighted)
        for metric in tf.nest.flatten(metrics)
    ]
    names = ["loss", *(metric.name for metric in found)]
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    if twice:
        raise UserError(f"metrics: two have the name {twice[0]!r}; `loss` is always reported.")
    return tuple(found)


def _name_of(metric: Any) -> str:
    """Returns a metric's name as Keras has it: what has none is called by its class."""
    names = (getattr(metric, name, None) for name in ("name", "__name__"))
    of_class = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(metric).__name__).lower()
    return next(filter(None, names), of_class)


def _convert(given: str | keras.metrics.Metric | ExampleFn, are_weighted: bool) -> Metric:
    metric: Any = _by_name(given) if isinstance(given, str) else given
    if isinstance(metric, type):
        raise UserError(f"metrics: {given!r} is a class; give an object, {metric.__name__}().")
    name = given if isinstance(given, str) else _name_of(metric)
    if are_weighted:
        raise UserError(
            f"metrics: with example_weight, Keras' {name!r} cannot tell as how many an example "
            "counts. Give a fedpersonal.model.metrics.Metric of sums."
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
            "summed over clients. Give its function alone, which returns one value an example, or "
            "a fedpersonal.model.metrics.Metric."
        )
    is_root = type(metric) is keras.metrics.RootMeanSquaredError
    finalizer = (lambda mean: mean**0.5) if is_root else _identity
    return KerasMetric(name, PerExample(_in_float32(function)), finalizer)


def _by_name(name: str) -> keras.metrics.Metric | ExampleFn:
    if _SHORT.get(name, name) in _BY_SHAPE:
        return _ByShape(_BY_SHAPE[_SHORT.get(name, name)])
    with contextlib.suppress(ValueError):
        found = keras.metrics.get(name)
        if not isinstance(found, str):  # Keras hands back some names that it does not know.
            return found
    raise UserError(
        f"metrics: Keras knows no metric {name!r}; names are such as 'accuracy', 'mse', 'mae', "
        "'sparse_categorical_crossentropy' and 'sparse_top_k_categorical_accuracy'."
    )


class _ByShape:
    """A metric that is one of three by Keras' rule for `accuracy`."""

    def __init__(self, names: Sequence[str]):
        self._functions: list[Any] = [mean_function(keras.metrics.get(name)) for name in names]

    def __call__(self, labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        binary, sparse, categorical = self._functions
        if output.shape[-1] == 1:
            return binary(labels, output)
        is_sparse = labels.shape.rank < output.shape.rank or labels.shape[-1] == 1
        return (sparse if is_sparse else categorical)(labels, output)


def _in_float32(fn: ExampleFn) -> ExampleFn:
    """Makes a Keras function one of float32, as Keras' objects do, with what it masks."""

    def values(labels: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
        pair = tf.cast(labels, tf.float32), tf.cast(output, tf.float32)
        found = fn(*pair)
        return with_notes(tf.cast(found, tf.float32), notes_of(found))

    return values
