"""Metrics that are ratios of two sums over examples, so that clients' sums add up."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Union

import numpy as np
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.keras import keras, mean_function

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
    """A function in any form that Keras takes for a loss, as one float an example."""

    def __init__(self, given: Loss):
        """Takes the function, a Keras loss, or the name of one."""
        found = keras.losses.get(given)
        self._call = found.call if isinstance(found, keras.losses.Loss) else found

    def called(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns what the function itself does."""
        return self._call(*as_in_keras(labels, predictions))

    def __call__(self, labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        """Returns one number an example; one of a whole batch is each example's."""
        values = self.called(labels, predictions)
        if values.shape.rank == 0:
            return tf.fill(tf.shape(labels)[:1], values)
        if values.shape.rank and values.shape.rank > 1:
            values = tf.reduce_mean(values, axis=list(range(1, values.shape.rank)))
        return values


def as_in_keras(labels: tf.Tensor, predictions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns labels and predictions as Keras' fit has them: (batch, 1) of one number an example.

    Keras averages over the last axis, which must not be the batch.
    """
    if len(predictions.shape) > 1:
        return labels, predictions
    return labels[:, tf.newaxis], predictions[:, tf.newaxis]


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


def _convert(given: str | keras.metrics.Metric | ExampleFn, are_weighted: bool) -> Metric:
    metric: Any = _by_name(given) if isinstance(given, str) else given
    if isinstance(metric, type):
        raise UserError(f"metrics: {given!r} is a class; give an object, {metric.__name__}().")
    name = given if isinstance(given, str) else getattr(metric, "name", None) or metric.__name__
    if are_weighted:
        raise UserError(
            f"metrics: with example_weight, Keras' {name!r} cannot tell as how many an example "
            "counts. Give a fedpersonal.model.metrics.Metric of sums."
        )
    if type(metric) is keras.metrics.RootMeanSquaredError:
        return Metric(name, _per_example(keras.losses.mean_squared_error), lambda m: m**0.5)
    function = mean_function(metric)
    if function is not None:
        return Metric(name, _per_example(function))
    if isinstance(metric, keras.metrics.Metric):
        raise UserError(
            f"metrics: {name!r} ({type(metric).__name__}) is no mean over examples, so it cannot "
            "be summed over clients. Means are accuracies, errors and cross-entropies such as "
            "'accuracy', 'mae' and RootMeanSquaredError(); or give a "
            "fedpersonal.model.metrics.Metric."
        )
    return Metric(name, _per_example(metric))


def _by_name(name: str) -> keras.metrics.Metric | ExampleFn:
    if _SHORT.get(name, name) in _BY_SHAPE:
        return _chosen_by_shape(_BY_SHAPE[_SHORT.get(name, name)])
    with contextlib.suppress(ValueError):
        found = keras.metrics.get(name)
        if not isinstance(found, str):  # Keras hands back some names that it does not know.
            return found
    raise UserError(
        f"metrics: Keras knows no metric {name!r}; names are such as 'accuracy', 'mse', 'mae', "
        "'sparse_categorical_crossentropy' and 'sparse_top_k_categorical_accuracy'."
    )


def _chosen_by_shape(names: Sequence[str]) -> ExampleFn:
    """Returns a function that is one of three by Keras' rule for `accuracy`."""
    binary, sparse, categorical = (keras.metrics.get(name) for name in names)

    def values(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        if predictions.shape[-1] == 1:
            return binary(labels, predictions)
        is_sparse = labels.shape.rank < predictions.shape.rank or labels.shape[-1] == 1
        return (sparse if is_sparse else categorical)(labels, predictions)

    return values


def _per_example(fn: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]) -> ExampleFn:
    """Makes a Keras function return one float32 an example, of float32 as Keras' objects do."""

    def values(labels: tf.Tensor, predictions: tf.Tensor) -> tf.Tensor:
        pair = tf.cast(labels, tf.float32), tf.cast(predictions, tf.float32)
        return tf.cast(fn(*pair), tf.float32)

    return PerExample(values)
