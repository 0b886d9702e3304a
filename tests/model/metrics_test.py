"""Keras metrics against Keras itself, and those that cannot be summed over clients."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import tensorflow as tf

from fedpersonal.errors import UserError
from fedpersonal.evaluation.client_metrics import lower_is_better
from fedpersonal.model.metrics import MAE, as_metrics

KERAS = tf.keras.metrics
RANDOM = np.random.default_rng(0)
CLASSES = RANDOM.integers(0, 4, 9).astype(np.int32)
ONE_HOT = np.eye(4, dtype=np.float32)[CLASSES]
SCORES = tf.nn.softmax(RANDOM.normal(size=[9, 4])).numpy().astype(np.float32)
REAL = RANDOM.normal(size=9).astype(np.float32)
RIGHT = RANDOM.integers(0, 2, 9).astype(np.float32)
CHANCE = RANDOM.uniform(0.01, 0.99, 9).astype(np.float32)


@pytest.mark.parametrize(
    ("metric", "labels", "predictions"),
    [
        (KERAS.RootMeanSquaredError(), REAL, CHANCE),
        (KERAS.MeanAbsoluteError(name="off"), REAL, CHANCE),
        (KERAS.BinaryAccuracy(threshold=0.3), RIGHT, CHANCE),
        (KERAS.SparseCategoricalAccuracy(), CLASSES, SCORES),
        (KERAS.SparseTopKCategoricalAccuracy(k=2), CLASSES, SCORES),
        (KERAS.SparseCategoricalCrossentropy(from_logits=True), CLASSES, SCORES),
        (KERAS.CategoricalAccuracy(), ONE_HOT, SCORES),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_values_are_kerass_own(metric, labels, predictions):
    (own,) = as_metrics([metric], are_weighted=False)
    assert own.name == metric.name
    check(own, metric, labels, predictions)


def check(metric, expected, labels, predictions):
    """Compares the mean of a metric's values with what Keras makes of the same."""
    values = metric.example_value(tf.constant(labels), tf.constant(predictions))
    assert values.shape == (9,) and values.dtype == tf.float32
    column = predictions[:, np.newaxis] if predictions.ndim == 1 else predictions
    expected = expected(labels[:, np.newaxis] if labels.ndim == 1 else labels, column)
    np.testing.assert_allclose(metric.finalize(values.numpy().mean()), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "labels", "predictions", "expected"),
    [
        ("accuracy", RIGHT, CHANCE, KERAS.BinaryAccuracy),
        ("acc", CLASSES, SCORES, KERAS.SparseCategoricalAccuracy),
        ("accuracy", ONE_HOT, SCORES, KERAS.CategoricalAccuracy),
    ],
)
def test_accuracy_is_of_the_kind_that_the_shapes_tell(name, labels, predictions, expected):
    (own,) = as_metrics(name, are_weighted=False)
    assert own.name == name
    check(own, expected(), labels, predictions)


def test_forms_can_be_mixed():
    def far(labels, predictions):
        return tf.cast(tf.abs(labels - predictions) > 1, tf.float32)

    metrics = as_metrics([MAE, "mse", far], are_weighted=False)
    assert metrics[0] is MAE and [m.name for m in metrics] == ["mae", "mse", "far"]
    values = metrics[2].example_value(tf.constant([1.0, 5.0]), tf.constant([1.5, 1.0]))
    np.testing.assert_array_equal(values, [0.0, 1.0])


@pytest.mark.parametrize(
    ("metrics", "are_weighted", "message"),
    [
        ([KERAS.AUC()], False, r"metrics: 'auc' \(AUC\) is no mean over examples.*'accuracy'"),
        ([KERAS.Precision(name="p")], False, r"'p' \(Precision\) is no mean"),
        (["acuracy"], False, "metrics: Keras knows no metric 'acuracy'; names are such as"),
        ([KERAS.AUC], False, r"is a class; give an object, AUC\(\)"),
        (["mae", MAE], False, "metrics: two have the name 'mae'"),
        ([KERAS.Mean("loss")], False, "'loss' .Mean. is no mean over examples"),
        (["mae"], True, "with example_weight, Keras' 'mae' cannot tell"),
    ],
)
def test_metrics_that_are_refused(metrics, are_weighted, message):
    with pytest.raises(UserError, match=message):
        as_metrics(metrics, are_weighted=are_weighted)


def test_every_metric_of_keras_gets_better_one_way():
    """By the name that it has unless it is given another one; sums and means are of anything."""
    neither = (KERAS.Mean, KERAS.MeanTensor, KERAS.Sum, KERAS.MeanMetricWrapper)
    lower = set()
    for kind in {value for value in vars(KERAS).values() if isinstance(value, type)}:
        if issubclass(kind, KERAS.Metric) and kind not in (KERAS.Metric, *neither):
            name = inspect.signature(kind).parameters["name"].default
            if not isinstance(name, str):
                name = re.sub("([a-z])([A-Z])", r"\1_\2", kind.__name__).lower()
            assert lower_is_better(name) is not None, name
            lower |= {kind.__name__} if lower_is_better(name) else set()
    assert {name for name in lower if not name.endswith(("Error", "Crossentropy", "Hinge"))} == {
        *("FalsePositives", "FalseNegatives", "KLDivergence", "Poisson")
    }
