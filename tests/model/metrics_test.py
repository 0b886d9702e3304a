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
        (["acuracy"], False, "metrics: Keras has no metric 'acuracy'; names are such as"),
        ([KERAS.AUC], False, r"is a class; give an object, AUC\(\)"),
        (["mae", MAE], False, "metrics: two have the name 'mae'"),
        ([KERAS.Mean("loss")], False, "'loss' .Mean. is no mean over examples"),
        (["mae"], True, "Keras' 'mae' does not support example_weight"),
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
