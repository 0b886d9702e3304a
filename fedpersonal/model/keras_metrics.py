"""Keras metrics, or their names, as the library's metrics.

A metric must be a mean over examples, or a function of one, so that clients' sums add up. Keras'
accuracies, errors, cross-entropies and hinges are.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, Union

import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.model.losses import ExampleFn, PerExample
from fedpersonal.model.metrics import Metric

AnyMetric = Union[Metric, str, tf.keras.metrics.Metric, ExampleFn]
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


def _convert(given: str | tf.keras.metrics.Metric | ExampleFn, are_weighted: bool) -> Metric:
    metric: Any = _by_name(given) if isinstance(given, str) else given
    if isinstance(metric, type):
        raise UserError(f"metrics: {given!r} is a class; give an object, {metric.__name__}().")
    name = given if isinstance(given, str) else getattr(metric, "name", None) or metric.__name__
    if are_weighted:
        raise UserError(
            f"metrics: with example_weight, Keras' {name!r} cannot tell as how many an example "
            "counts. Give a fedpersonal.model.metrics.Metric of sums."
        )
    if type(metric) is tf.keras.metrics.RootMeanSquaredError:
        return Metric(name, _per_example(tf.keras.losses.mean_squared_error), lambda m: m**0.5)
    if hasattr(metric, "_fn"):  # A MeanMetricWrapper.
        fn, options = metric._fn, metric._fn_kwargs
        return Metric(name, _per_example(lambda *pair: fn(*pair, **options)))
    if isinstance(metric, tf.keras.metrics.Metric):
        raise UserError(
            f"metrics: {name!r} ({type(metric).__name__}) is no mean over examples, so it cannot "
            "be summed over clients. Means are accuracies, errors and cross-entropies such as "
            "'accuracy', 'mae' and RootMeanSquaredError(); or give a "
            "fedpersonal.model.metrics.Metric."
        )
    return Metric(name, _per_example(metric))


def _by_name(name: str) -> tf.keras.metrics.Metric | ExampleFn:
    if _SHORT.get(name, name) in _BY_SHAPE:
        return _chosen_by_shape(_BY_SHAPE[_SHORT.get(name, name)])
    with contextlib.suppress(ValueError):
        found = tf.keras.metrics.get(name)
        if not isinstance(found, str):  # Keras hands back some names that it does not know.
            return found
    raise UserError(
        f"metrics: Keras knows no metric {name!r}; names are such as 'accuracy', 'mse', 'mae', "
        "'sparse_categorical_crossentropy' and 'sparse_top_k_categorical_accuracy'."
    )


def _chosen_by_shape(names: Sequence[str]) -> ExampleFn:
    """Returns a function that is one of three by Keras' rule for `accuracy`."""
    binary, sparse, categorical = (tf.keras.metrics.get(name) for name in names)

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
