"""A partitioned model as a plain Keras model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from fedpersonal.model.partition import PartitionedModel


def to_keras(model: PartitionedModel, values: Mapping[str, np.ndarray]) -> tf.keras.Model:
    """Builds the Keras model and gives it values.

    Args:
        model: The partitioned model.
        values: Variable's name to value, of all but the frozen ones.

    Returns:
        A Keras model of its own, which trains, predicts and saves as any other.
    """
    built = model.build()
    if not built.built or not built.weights:
        inputs = {
            name: tf.zeros([1, *(size or 1 for size in spec.shape[1:])], spec.dtype)
            for name, spec in model.input_spec.items()
        }
        built(model.arrange(inputs))
    by_name = {variable.name.split(":")[0]: variable for variable in built.weights}
    for spec in model.created:
        value = model.frozen.array(spec.name) if spec.is_frozen else values[spec.name]
        by_name[spec.name].assign(value)
    return built
