"""Cases of masks, losses and metrics."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from tests.model.keras_parity import Case

RANDOM = np.random.default_rng(0)
NUM = 8
X = RANDOM.normal(size=[NUM, 4]).astype(np.float32)
REAL = RANDOM.normal(size=NUM).astype(np.float32)
CLASSES = RANDOM.integers(0, 3, NUM).astype(np.int32)


def dense(units=1, activation=None):
    """Returns what builds a model of one dense layer."""
    return lambda: tf.keras.Sequential(
        [tf.keras.Input([4], name="x"), tf.keras.layers.Dense(units, activation)]
    )


CASES = [
    Case("mean squared error by name", dense(), X, REAL, "mse", ["mae", "mse"]),
    Case(
        "sparse classes",
        dense(3, "softmax"),
        X,
        CLASSES,
        "sparse_categorical_crossentropy",
        ["accuracy"],
        start="drawn",
    ),
    Case(
        "AUC is no mean over examples",
        dense(1, "sigmoid"),
        X,
        (REAL > 0).astype(np.float32),
        "binary_crossentropy",
        [tf.keras.metrics.AUC()],
        refused="'auc' (AUC) is no mean over examples",
    ),
]
